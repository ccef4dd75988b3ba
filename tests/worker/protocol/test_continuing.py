# SPDX-License-Identifier: Apache-2.0
"""Sums are exact however often the switch is lost, though nothing is copied and repeated.

And after the loss of a rank, a collective is over on all ranks that remain, or on none of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from one_process import OneProcess
from p4reduce.errors import P4ReduceError
from p4reduce.latch import Latch
from p4reduce.session.settling import settle_calls
from p4reduce.session.waiting import Waiting
from p4reduce.tensors import plans, stream
from p4reduce.tensors.continuing import Continuation, words_of
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation, class_slots
from p4reduce.wire.format import Flag
from p4reduce_controller.jobs.refusals import JobRefusedError
from p4reduce_controller.jobs.settling import Settlement

WORLD, SLOTS = 3, 4
BLOCK = 256
USED = -77


@dataclass
class Rank:
    """One rank's program: arrays to be reduced in order, and what has become of them."""

    rank: int
    inputs: list[npt.NDArray[Any]]
    in_place: list[bool]
    precisions: list[str | None]
    urgent: list[bool]
    given: list[npt.NDArray[Any]] = field(default_factory=list)
    outs: list[npt.NDArray[Any]] = field(default_factory=list)
    results: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    calls: list[Collective] = field(default_factory=list)

    def call(self, urgent_slots: tuple[int, ...]) -> Collective:
        """The next one, from an array of its own or in place."""
        number = len(self.calls)
        array = self.inputs[number].copy()
        out = array if self.in_place[number] else np.full_like(array, 99)
        precision = self.precisions[number]
        seed = 5 if precision else None
        plan = plans.allreduce(
            array, Operation.SUM, None, out, precision, seed, world_size=WORLD
        ).with_priority(int(self.urgent[number]))
        slots = class_slots(SLOTS, urgent_slots)[plan.call.priority]
        call = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=number,
            slots=len(slots),
            first_slot=slots.start,
            timeout=1e6,
            lane_format=plan.lane_format,
            noise=plan.noise(self.rank, number),
        )
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


def programs(rng: np.random.Generator, calls: int, urgent: bool) -> list[Rank]:
    sizes = rng.choice([0, 1, BLOCK, 3 * BLOCK, 4 * BLOCK + 5, 11 * BLOCK], calls)
    in_place = [bool(flag) for flag in rng.random(calls) < 0.5]
    kinds = rng.choice(["int32", "float32", "int16", "int8", "int4"], calls).tolist()
    first = [urgent and bool(flag) for flag in rng.random(calls) < 0.3]
    ranks = []
    for rank in range(WORLD):
        inputs: list[npt.NDArray[Any]] = []
        for size, kind in zip(sizes, kinds, strict=True):
            array = rng.integers(-1000, 1000, size).astype("int32" if kind == "int32" else "f4")
            for start in range(0, len(array), BLOCK):
                array[start : start + BLOCK] *= bool(rng.random() < 0.6)
            if kind == "float32" and size and rng.random() < 0.2:
                array[0] = np.nan
            inputs.append(array)
        precisions = [
            kind if kind.startswith("int") and kind != "int32" else None for kind in kinds
        ]
        ranks.append(Rank(rank, inputs, in_place, precisions, first))
    return ranks


def run(
    ranks: list[Rank],
    rng: np.random.Generator,
    losses: int,
    urgent: tuple[int, ...],
    reference: tuple[int, ...] = (),
) -> int:
    """Let all ranks call and get everything; return how often the switch was lost."""
    calls, lost = len(ranks[0].inputs), 0
    fabric = OneProcess(WORLD, SLOTS, rng, loss=0.1, urgent=urgent, reference=reference)
    lost_at = set(rng.integers(1, 80 * calls, losses).tolist())
    for step in range(100_000):
        if all(len(rank.results) == calls for rank in ranks):
            break
        for rank, machine in zip(ranks, fabric.machines, strict=True):
            if len(rank.calls) < calls and rng.random() < 0.03:
                machine.submit(rank.call(urgent))
            rank.take_results()
        if not fabric.step():
            fabric.tick()
        if step in lost_at:
            lost += 1
            # The next one may be lost before all of them are there.
            while rng.random() < 0.3:
                fabric.continue_elsewhere([rank for rank in range(WORLD) if rng.random() < 0.5])
            fabric.continue_elsewhere(range(WORLD))
    return lost


@pytest.mark.parametrize("urgent", [(), (1,)], ids=["one class", "two classes"])
@pytest.mark.parametrize("losses", [1, 4])
def test_results_are_those_without_a_loss(
    rng: np.random.Generator, losses: int, urgent: tuple[int, ...]
) -> None:
    calls = 14
    seed = int(rng.integers(1 << 30))
    expected = programs(np.random.default_rng(seed), calls, bool(urgent))
    ranks = programs(np.random.default_rng(seed), calls, bool(urgent))
    run(expected, rng, 0, urgent)
    assert run(ranks, rng, losses, urgent)
    for rank, undisturbed in zip(ranks, expected, strict=True):
        for number in range(calls):
            want = undisturbed.results[number].tobytes()
            assert rank.results[number].tobytes() == want, (rank.rank, number)
            assert (rank.outs[number] == USED).all(), "written to after the call"


def test_the_reference_continues_in_the_same_way(rng: np.random.Generator) -> None:
    """Two ranks run it, and hand over to the engine's rank and get from it."""
    calls = 5
    seed = int(rng.integers(1 << 30))
    expected = programs(np.random.default_rng(seed), calls, urgent=False)
    ranks = programs(np.random.default_rng(seed), calls, urgent=False)
    run(expected, rng, 0, ())
    assert run(ranks, rng, 4, (), reference=(0, 2))
    for rank, undisturbed in zip(ranks, expected, strict=True):
        for number in range(calls):
            want = undisturbed.results[number].tobytes()
            assert rank.results[number].tobytes() == want, (rank.rank, number)


def test_residuals_and_sparse_inputs_are_read_once(rng: np.random.Generator) -> None:
    """A contribution that is sent again is the same, and its rounding errors are kept once."""
    arrays = rng.standard_normal((WORLD, 6 * 1024)).astype(np.float32)

    def reduced(lost: bool) -> list[bytes]:
        given, residuals = arrays.copy(), np.full_like(arrays, 0.5)
        fabric = OneProcess(WORLD, SLOTS, np.random.default_rng(3))
        for rank, machine in enumerate(fabric.machines):
            plan = plans.allreduce(
                given[rank],
                Operation.MEAN,
                None,
                given[rank],
                "int8",
                1,
                residuals[rank],
                world_size=WORLD,
            )
            machine.submit(
                Collective(
                    plan.call,
                    plan.source,
                    plan.target,
                    sequence=0,
                    slots=SLOTS,
                    timeout=1e6,
                    lane_format=plan.lane_format,
                    noise=plan.noise(rank, 0),
                )
            )
        steps = 0
        while fabric.step():
            steps += 1
            if lost and steps % 7 == 0:
                fabric.continue_elsewhere(range(WORLD))
        return [given.tobytes(), residuals.tobytes()]

    assert reduced(lost=True) == reduced(lost=False)


# -- The loss of a rank ---------------------------------------------------------------------------


class _KilledError(Exception):
    pass


class Survivors:
    """The ranks that remain, the real agreement of each in a thread, and the controller's part.

    Args:
        machines: of all ranks, which nothing else runs any more.
        ranks: those that remain.
        killed: a rank of these that is lost after it has said that many things, if any.
    """

    def __init__(
        self, machines: Sequence[Any], ranks: Sequence[int], killed: tuple[int, int] | None
    ) -> None:
        self.remain = set(ranks)
        self.errors: list[BaseException] = []
        self._settlement, self._changed = Settlement(), threading.Condition()
        self._killed = killed
        self._said = dict.fromkeys(ranks, 0)
        threads = [threading.Thread(target=self._run, args=(one, machines[one])) for one in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "it never ends"
        assert not self.errors, self.errors

    def _run(self, rank: int, machine: Any) -> None:
        member = cast(Any, SimpleNamespace(rank=rank))
        try:
            waiting = Waiting(f"rank {rank}", time.monotonic() + 50, Latch())
            settle_calls(cast(Any, self), member, machine, waiting)
        except _KilledError:
            with self._changed:
                self.remain.discard(rank)
                self._advance()
        except BaseException as error:
            self.errors.append(error)

    def _advance(self) -> None:
        self._settlement.advance(self.remain)
        self._changed.notify_all()

    def settle(
        self, member: Any, step: int, said: bytes, timeout: float, check: Callable[[], None]
    ) -> dict[int, bytes]:
        assert len(said) <= 60 << 10
        with self._changed:
            if self._killed == (member.rank, self._said[member.rank]):
                raise _KilledError
            self._said[member.rank] += 1
            now = self._settlement.say(member.rank, step, said)
            self._advance()
            assert self._changed.wait_for(now.published.is_set, timeout)
            return now.said


@pytest.mark.parametrize("second", [False, True], ids=["one is lost", "another one is lost then"])
@pytest.mark.parametrize("reference", [(), (0, 2)], ids=["engine", "with the reference"])
def test_a_collective_is_over_on_all_ranks_that_remain_or_on_none(
    rng: np.random.Generator, reference: tuple[int, ...], second: bool
) -> None:
    calls = 6
    for _ in range(3):
        seed = int(rng.integers(1 << 30))
        expected = programs(np.random.default_rng(seed), calls, urgent=False)
        ranks = programs(np.random.default_rng(seed), calls, urgent=False)
        run(expected, rng, 0, ())
        fabric = OneProcess(WORLD, SLOTS, rng, loss=0.2, reference=reference)
        for _ in range(int(rng.integers(1, 250))):
            for rank, machine in zip(ranks, fabric.machines, strict=True):
                if len(rank.calls) < calls and rng.random() < 0.1:
                    machine.submit(rank.call(()))
                rank.take_results()
            if not fabric.step():
                fabric.tick()
        lost = int(rng.integers(WORLD))
        remain = [rank for rank in range(WORLD) if rank != lost]
        killed = (int(rng.choice(remain)), int(rng.integers(3))) if second else None
        left = Survivors(fabric.machines, remain, killed).remain
        for number in range(calls):
            over = set()
            for rank in left:
                ranks[rank].take_results()
                result = ranks[rank].results.get(number)
                over.add(result is not None)
                if result is not None:
                    assert result.tobytes() == expected[rank].results[number].tobytes()
            assert len(over) == 1, (number, seed)


def test_more_results_than_a_request_has_room_for(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots of a large job, in which one rank has each result and the other one lacks it."""
    slots = 130
    # A rank that lacks a result never comes to another block of the stripe.
    monkeypatch.setattr(stream, "stripes_of", lambda blocks, *_: blocks)
    fabric = OneProcess(2, slots, rng)
    given = [np.full(slots * BLOCK, rank + 1, np.int32) for rank in range(2)]
    calls = []
    for array, machine in zip(given, fabric.machines, strict=True):
        plan = plans.allreduce(array, Operation.SUM, None, array, world_size=2)
        call = Collective(plan.call, plan.source, plan.target, sequence=0, slots=slots, timeout=1e6)
        machine.submit(call)
        calls.append(call)
    receive = fabric.machines[1].receive

    def receive_no_sums(buffer: Any, count: int, now: float) -> None:
        if not buffer.records["flags"][0] & Flag.PAYLOAD:
            receive(buffer, count, now)

    fabric.machines[1].receive = receive_no_sums
    while not calls[0].done():
        fabric.machines[1].window_size = slots  # though it hears nothing
        if not fabric.step():
            fabric.tick()
    assert not calls[1].done()
    Survivors(fabric.machines, [0, 1], None)
    assert calls[1].done()
    assert calls[1].error is None
    assert (given[1] == 3).all()


def test_a_step_that_is_over_does_not_change() -> None:
    settlement = Settlement()
    first = settlement.say(0, 0, b"a")
    settlement.advance([0, 1])
    assert not first.published.is_set()
    settlement.pass_on(1)
    settlement.advance([0, 1])
    assert first.published.is_set()
    assert settlement.say(0, 0, b"b").said == {0: b"a"}  # its answer got lost
    with pytest.raises(JobRefusedError, match="rank 1 is at step 0"):
        settlement.say(1, 0, b"c")
    with pytest.raises(JobRefusedError, match=r"rank 0 is at step 2 .* at step 0"):
        settlement.say(0, 2, b"d")
    settlement.say(0, 1, b"e")
    assert settlement.say(0, 0, b"f").said == {0: b"a"}


# -- Who continues where -------------------------------------------------------------------------


def test_who_lacks_a_result_and_who_hands_it_over() -> None:
    finished = np.array([[7, 0, 5, 2**32 - 1], [7, 1, 4, 0], [7, 1, 5, 0]], np.uint32)
    words = [words_of(one) for one in finished]
    for rank, own in enumerate(finished):
        found = Continuation.of(own, words)
        assert found.newest.tolist() == [7, 1, 5, 0]
        assert found.slots.tolist() == [1, 2, 3]
        assert found.givers.tolist() == [1, 0, 1]
        assert (
            found.lacking.tolist() == [[True, False, True], [False, True, False], [False] * 3][rank]
        )


@pytest.mark.parametrize("slots", [1, 15, 16, 17, 400])
def test_any_number_of_slots(slots: int, rng: np.random.Generator) -> None:
    base = rng.integers(0, 2**32, slots, np.uint32)
    finished = base + rng.integers(0, 2, (5, slots)).astype(np.uint32)
    newest = np.where((finished == base).all(axis=0), base, base + np.uint32(1))
    found = Continuation.of(finished[2], [words_of(one) for one in finished])
    assert np.array_equal(found.newest, newest)
    assert np.array_equal(found.slots, np.flatnonzero((finished != newest).any(axis=0)))


def test_ranks_that_are_further_apart_than_they_can_be() -> None:
    finished = np.array([[4, 9], [4, 7]], np.uint32)
    with pytest.raises(P4ReduceError, match="slot 1: two ranks are 2 results apart"):
        Continuation.of(finished[0], [words_of(one) for one in finished])
