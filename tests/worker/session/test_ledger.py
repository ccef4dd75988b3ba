# SPDX-License-Identifier: Apache-2.0
"""Which inputs are kept, and that collectives run again from them on a fresh switch are exact."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from one_process import OneProcess
from p4reduce.errors import ClosedError, P4ReduceError
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.copy_pool import CopyPool
from p4reduce.tensors.replay_log import InputSnapshot, ReplayLog
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import Format

LANES = Format.INT32.lanes
WORLD, SLOTS = 3, 4
USED = -12345


def collective(
    array: npt.NDArray[np.int32],
    sequence: int = 0,
    *,
    slots: int = SLOTS,
    out: npt.NDArray[np.int32] | None = None,
    keep: CopyPool | None = None,
) -> Collective:
    result = np.full_like(array, 99) if out is None else out
    return Collective(
        Call("allreduce", "int32", array.size, Operation.SUM),
        Blocks(array, LANES),
        Blocks(result, LANES),
        sequence=sequence,
        slots=slots,
        timeout=1e6,
        keep=keep,
    )


# -- Copies --------------------------------------------------------------------------------------


def test_a_snapshot_keeps_what_the_array_held(rng: np.random.Generator) -> None:
    array = rng.integers(1, 100, 5 * LANES + 7, np.int32)
    array[LANES : 2 * LANES] = 0
    before = array.copy()
    snapshot = InputSnapshot(collective(array))
    array[:] = -1
    blocks = np.array([0, 2, 3, 4, 5])
    rows = np.empty((5, LANES), np.int32)
    snapshot.gather(blocks, rows)
    padded = np.zeros(6 * LANES, np.int32)
    padded[: len(before)] = before
    assert np.array_equal(rows, padded.reshape(6, LANES)[blocks])


def test_blocks_of_zeros_take_no_room() -> None:
    array = np.zeros(1000 * LANES, np.int32)
    array[7 * LANES] = 1
    assert InputSnapshot(collective(array)).nbytes < 10 * 1024
    assert InputSnapshot(collective(np.ones(1000 * LANES, np.int32))).nbytes == 1000 * 1024


# -- How long copies are kept --------------------------------------------------------------------


@dataclass
class Rank:
    """One rank's program: arrays to be reduced in order, and what has become of them."""

    inputs: list[npt.NDArray[np.int32]]
    in_place: list[bool]
    replay_log: ReplayLog = field(default_factory=lambda: ReplayLog())
    given: list[npt.NDArray[np.int32]] = field(default_factory=list)
    outs: list[npt.NDArray[np.int32]] = field(default_factory=list)
    results: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    calls: list[Collective] = field(default_factory=list)

    def call(self) -> Collective:
        """The next one, from an array of its own or in place."""
        number = len(self.calls)
        array = self.inputs[number].copy()
        out = array if self.in_place[number] else np.full_like(array, 99)
        call = collective(array, number, out=out)
        self.replay_log.add(call)
        self.calls.append(call)
        self.given.append(array)
        self.outs.append(out)
        return call

    def take_results(self) -> None:
        """As a caller may: look at what came out, then use the arrays for something else."""
        for call, array, out in zip(self.calls, self.given, self.outs, strict=True):
            if call.done() and call.sequence not in self.results:
                call.wait(0)
                self.results[call.sequence] = out.copy()
                array[:] = USED
                out[:] = USED

    def kept(self) -> set[int]:
        return {one.sequence for one in self.replay_log.since(0)}


def ranks_with_random_programs(rng: np.random.Generator, calls: int) -> list[Rank]:
    sizes = rng.choice([0, 1, LANES, 3 * LANES, 4 * LANES + 5, 11 * LANES], calls)
    in_place = [bool(flag) for flag in rng.random(calls) < 0.5]
    ranks = []
    for _ in range(WORLD):
        inputs = [rng.integers(-1000, 1000, size, np.int32) for size in sizes]
        for array in inputs:
            for start in range(0, len(array), LANES):
                array[start : start + LANES] *= rng.random() < 0.6
        ranks.append(Rank(inputs, in_place))
    return ranks


@pytest.mark.parametrize("losses", [0, 1, 3])
def test_all_sums_are_exact_however_often_the_switch_is_lost(
    rng: np.random.Generator, losses: int
) -> None:
    """Also: nothing is let go of that any rank lacks."""
    calls = 14
    ranks = ranks_with_random_programs(rng, calls)
    fabric = OneProcess(WORLD, SLOTS, rng, loss=0.1)
    steps_between = rng.integers(20, 250, losses).tolist()
    until_loss = steps_between.pop() if steps_between else None
    lost = 0
    for _ in range(100_000):
        if all(len(rank.results) == calls for rank in ranks):
            break
        for rank, machine in zip(ranks, fabric.machines, strict=True):
            if len(rank.calls) < calls and rng.random() < 0.03:
                machine.submit(rank.call())
                released = set(range(len(rank.calls))) - rank.kept()
                assert all(other.calls[one].done() for one in released for other in ranks)
            rank.take_results()
        if not fabric.step():
            fabric.tick()
        if until_loss is not None:
            until_loss -= 1
            if until_loss <= 0:
                lost += 1
                until_loss = steps_between.pop() if steps_between else None
                fabric.new_switch()
                first = min(rank.replay_log.completed for rank in ranks)
                for rank, machine in zip(ranks, fabric.machines, strict=True):
                    for again in rank.replay_log.replay(first):
                        machine.submit(again)
    assert lost >= min(losses, 1)  # the run may be over before the last one
    for number in range(calls):
        total = np.sum([rank.inputs[number] for rank in ranks], axis=0)
        for rank in ranks:
            assert np.array_equal(rank.results[number], total), (number, rank.in_place[number])
            assert (rank.outs[number] == USED).all(), "a repetition wrote to the caller's array"


@pytest.mark.parametrize("blocks", [1, SLOTS, 10 * SLOTS])
def test_what_is_kept_is_bounded(rng: np.random.Generator, blocks: int) -> None:
    """A hundred collectives one after the other leave the copies of the last few behind."""
    replay_log = ReplayLog()
    fabric = OneProcess(1, SLOTS, rng)
    largest = 0
    for number in range(100):
        call = collective(np.ones(blocks * LANES, np.int32), number)
        replay_log.add(call)
        fabric.machines[0].submit(call)
        while fabric.step():
            pass
        assert call.done()
        largest = max(largest, replay_log.nbytes)
    assert largest <= (2 * blocks + 3 * SLOTS + 8) * Format.INT32.lanes * 4


def test_large_inputs_one_after_the_other_are_copied_to_two_places() -> None:
    """The kernel fills fresh memory with zeros, which costs more than the copy."""
    replay_log = ReplayLog()
    array = np.ones(1000 * LANES, np.int32)
    places = []
    for number in range(10):
        call = collective(array, number, keep=replay_log.copy_pool)
        assert call.copied is not None
        places.append(int(call.copied.rows.ctypes.data))
        replay_log.add(call)
        call.finish()
    assert len(set(places)) == 2


def test_one_that_is_kept_keeps_those_after_it() -> None:
    """Or some ranks would repeat a collective that others would not."""
    replay_log = ReplayLog()
    for number in range(9):
        call = collective(np.ones(3, np.int32), number, slots=2)
        call.offset = number % 2
        # Number 2 is slow, and those behind it in the slot that number 0 had wait for it.
        if number == 0 or number % 2:
            call.finish()
        replay_log.add(call)
    assert [call.sequence for call in replay_log.replay(0)] == list(range(9))


def test_urgent_ones_are_kept_until_their_slots_come_again() -> None:
    """Or until the controller says that all ranks have them: `forget`."""

    def called(replay_log: ReplayLog, number: int, *, urgent: bool) -> None:
        call = collective(np.ones(5 * LANES, np.int32), number, slots=2)
        call.first_slot = call.offset = 2 if urgent else 0
        replay_log.add(call)
        call.finish()

    replay_log = ReplayLog()
    called(replay_log, 0, urgent=True)
    for number in range(1, 20):
        called(replay_log, number, urgent=False)
    assert len(replay_log) == 20
    replay_log.forget(15)
    assert len(replay_log) == 5
    called(replay_log, 20, urgent=True)
    for number in range(21, 40):
        called(replay_log, number, urgent=False)
    assert len(replay_log) == 20
    called(replay_log, 40, urgent=True)
    called(replay_log, 41, urgent=False)
    assert [one.sequence for one in replay_log.since(0)] == [39, 40, 41]


# -- Asking for what is not there ----------------------------------------------------------------


def test_an_input_that_is_gone_is_not_made_up(rng: np.random.Generator) -> None:
    replay_log = ReplayLog()
    fabric = OneProcess(1, SLOTS, rng)
    for number in range(3):
        call = collective(np.ones(9 * LANES, np.int32), number)
        replay_log.add(call)
        fabric.machines[0].submit(call)
        while fabric.step():
            pass
    with pytest.raises(P4ReduceError, match="collective 0 is to be repeated"):
        replay_log.replay(0)


def test_all_end_with_the_error() -> None:
    replay_log = ReplayLog()
    calls = [collective(np.ones(3, np.int32), number) for number in range(2)]
    for call in calls:
        replay_log.add(call)
    assert replay_log.completed == 0
    replay_log.fail(ClosedError("over"))
    for call in calls:
        with pytest.raises(ClosedError, match="over"):
            call.wait(0)
    assert len(replay_log) == 0
