# SPDX-License-Identifier: Apache-2.0
"""Switches side by side: one that is ahead of the slowest has fewer frames under way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from one_process import OneProcess
from p4reduce.tensors import plans
from p4reduce.tensors.progress import PartPlace, SwitchProgress
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer

SLOTS = 128
BLOCKS = 1 << 14  # a lead is a sum of shares, which are exact then
LANES = 256


class Side(OneProcess):
    """A job of one rank at one of the switches, which answers when the test says so."""

    def __init__(self, progress: SwitchProgress, switch: int, rng: np.random.Generator) -> None:
        super().__init__(1, SLOTS, rng)
        self._progress, self._switch = progress, switch
        self._calls = 0
        self._in_flight: list[bytes] = []
        self.machine.window_size = SLOTS

    @property
    def machine(self) -> Any:
        return self.machines[0]

    def call(self, array: npt.NDArray[Any], *, cut: bool = True) -> Collective:
        """Start an allreduce, and open its stripes."""
        plan = plans.allreduce(array, Operation.SUM, None, np.empty_like(array), world_size=1)
        one = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=self._calls,
            slots=SLOTS,
            timeout=1e9,
            place=PartPlace(self._progress, self._switch, self._calls) if cut else None,
        )
        self._calls += 1
        self.machine.submit(one)
        self._send()
        self.sum(len(self._in_flight))
        return one

    def sum(self, frames: int) -> None:
        """Answer so many of the frames that are under way, the first ones."""
        for _ in range(frames):
            for _, result in self._pipeline.process(1, self._in_flight.pop(0)):
                buffer = FrameBuffer(1)
                buffer.put(0, bytes(result))
                self.machine.receive(buffer, 1, self._now)
            self._send()

    def finish(self, call: Collective) -> None:
        while not call.done():
            self.sum(len(self._in_flight))

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def _send(self) -> None:
        rows = self.machine.take_sendable()
        self.machine.sent(rows, self._now)
        self._in_flight += [self.machine.outgoing.get(row) for row in rows]


def ones(blocks: int = BLOCKS) -> npt.NDArray[np.int32]:
    return np.ones(blocks * LANES, np.int32)


@pytest.fixture
def progress() -> SwitchProgress:
    return SwitchProgress(2)


@pytest.fixture
def sides(progress: SwitchProgress, rng: np.random.Generator) -> list[Side]:
    return [Side(progress, switch, rng) for switch in range(2)]


@pytest.mark.parametrize(("ahead", "fewer"), [(0, 0), (16, 0), (17, 1), (56, 40), (300, 64)])
def test_a_switch_ahead_has_as_many_frames_fewer(sides: list[Side], ahead: int, fewer: int) -> None:
    """What it is ahead beyond 16 blocks, and half of its window at most."""
    first, second = sides
    for side in sides:
        side.call(ones())
    assert first.in_flight == SLOTS
    first.sum(ahead)
    for _ in range(SLOTS):  # a round trip, in which both are equally fast
        for side in (second, first):
            side.sum(1)
    assert first.in_flight == SLOTS - fewer
    assert second.in_flight == SLOTS


def test_it_sends_all_when_the_other_has_caught_up(sides: list[Side]) -> None:
    first, second = sides
    for side in sides:
        side.call(ones())
    first.sum(300)
    assert first.in_flight == SLOTS // 2
    second.sum(300)
    first.sum(1)
    assert first.in_flight == SLOTS


def test_shares_of_any_sizes_are_to_end_together(sides: list[Side]) -> None:
    """The place of a switch is a share of its part: a tenth of each is no lead."""
    first, second = sides
    first.call(ones(10 * 1000))
    second.call(ones(1000))
    first.sum(1000)
    second.sum(100)
    first.sum(1)
    assert first.in_flight == SLOTS


def test_zero_blocks_are_passed(sides: list[Side]) -> None:
    """A part of which no rank has most blocks is as far as its last block shows."""
    first, second = sides
    sparse = ones().reshape(BLOCKS, LANES)
    sparse[SLOTS:-SLOTS] = 0
    for side, array in zip(sides, (ones(), sparse.reshape(-1)), strict=True):
        side.call(array)
    second.sum(SLOTS)  # up to those at the end
    first.sum(1000)
    assert first.in_flight == SLOTS


def test_one_collective_ends_and_the_next_begins(sides: list[Side]) -> None:
    first, second = sides
    for array in (ones(500), ones(3), ones(200)):
        for side in sides:
            side.finish(side.call(array))
    for side in sides:
        side.call(ones())
        side.sum(10)
    assert first.in_flight == second.in_flight == SLOTS


def test_what_is_not_cut_has_the_whole_window(sides: list[Side]) -> None:
    first, _ = sides
    first.call(ones(), cut=False)
    first.sum(1000)
    assert first.in_flight == SLOTS


def test_frames_that_were_held_back_are_counted(
    progress: SwitchProgress, sides: list[Side]
) -> None:
    first, second = sides
    for side in sides:
        side.call(ones())
    assert [progress.take_held_back(switch) for switch in range(2)] == [0.0, 0.0]
    first.sum(400)
    assert first.in_flight == SLOTS // 2
    before = progress.take_held_back(0)
    first.sum(100)
    assert progress.take_held_back(0) == pytest.approx(100)  # each of them stands for two
    assert 0 < before < 400
    assert progress.take_held_back(1) == 0.0
    assert second.in_flight == SLOTS
