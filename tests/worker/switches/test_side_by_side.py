# SPDX-License-Identifier: Apache-2.0
"""Whole communicators on several switches: what they compute, and what goes where."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from fault_system import short_time
from p4reduce.switches import side_by_side
from p4reduce.switches.dealing import Dealer
from p4reduce.switches.shares import PERIOD, Shares, SwitchRate
from several_switches import SeveralSwitches
from thread_faults import ThreadFault, fault_in_threads
from worker_system import DEADLINE, at_once, outcome, wait_for

WORLD = 3
BLOCK = 256
BIG = 200 * BLOCK + 9  # is cut
ONES = np.ones(BIG, np.float32)


def everything(comm: p4reduce.Communicator) -> list[bytes]:
    """Calls of all kinds, many of them under way at once."""
    rng = np.random.default_rng(comm.rank)
    floats = rng.standard_normal(BIG).astype(np.float32)
    floats[: 90 * BLOCK] = 0
    holes = floats.copy()
    holes[rng.random(BIG) < 0.999] = 0
    odd = floats.copy()
    odd[-1] = np.nan
    wide = rng.standard_normal((300, BLOCK))
    integers = rng.integers(-1000, 1000, BIG, np.int32)
    rows = rng.choice(5000, 40, replace=False)
    sparse = p4reduce.SparseRows(rows, rng.standard_normal((40, 100)).astype("f"), (5000, 100))
    numbers = np.arange((comm.rank + 1) * 20_000.0)
    in_place = floats.copy()
    urgent = {"priority": p4reduce.Priority.URGENT}
    handles: list[Any] = [
        comm.allreduce_async(floats),
        comm.allreduce_async(in_place, out=in_place, op=p4reduce.MEAN),
        comm.allreduce_async(integers),
        comm.allreduce_async(floats.astype(np.float16)),
        comm.allreduce_async(wide, **urgent),
        comm.allreduce_async(np.float32(comm.rank), **urgent),
        comm.allreduce_async(integers.astype(np.int8) // 64),
        comm.allreduce_async(odd),
        comm.allreduce_async(floats, precision="int16", seed=3),
        comm.allreduce_async(floats, precision="int8", seed=4),
        comm.allreduce_async(holes),
        comm.broadcast_async(wide, root=1),
        comm.reduce_scatter_async(wide),
        comm.reduce_async(wide, root=2),
        comm.allgather_async(numbers, [20_000 * (n + 1) for n in range(comm.size)]),
        comm.grouped_allreduce_async([floats[: 7 * n + 1] for n in range(300)]),
        comm.allreduce_async(np.zeros(0, np.float32)),
    ]
    comm.barrier()
    results = [handle.wait() for handle in handles]
    summed = comm.allreduce_sparse(sparse)
    results += [summed.indices, summed.values, comm.allgather(numbers[: comm.rank + 2])]
    results.append(comm.allreduce_sparse(sparse, dense=True, precision="int16", seed=1))
    return [np.concatenate(one) if isinstance(one, list) else one for one in results]


def as_bytes(results: list[Any]) -> list[bytes]:
    return [b"" if one is None else np.asarray(one).tobytes() for one in results]


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.long)])
def test_all_bits_are_those_of_one_switch(switches: SeveralSwitches, number: int) -> None:
    switches.grow(number)

    def work(comm: p4reduce.Communicator) -> tuple[list[bytes], p4reduce.Communicator]:
        results = as_bytes(everything(comm))
        with comm.dup() as twin:
            results += as_bytes(everything(twin))
        return results, comm

    options: dict[str, Any] = {"slots": 64, "urgent_slots": 16}
    single = switches.run(WORLD, work, switches=[0], **options)
    several = switches.run(WORLD, work, switches=list(range(number)), **options)
    for (results, comm), (expected, lone) in zip(several, single, strict=True):
        assert results == expected
        assert comm.stats.collectives == lone.stats.collectives
        # One block more, by which the ranks agree on shares at the 16th call that is cut.
        assert comm.stats.blocks == lone.stats.blocks + 1
        assert comm.stats.blocks_sent == lone.stats.blocks_sent + 1
        assert comm.slots == number * lone.slots
        each = [switch.statistics for switch in comm.switches]
        assert sum(one.blocks for one in each) == comm.stats.blocks
        assert all(one.blocks > lone.stats.blocks // 10 for one in each)
        assert all(one.blocks_received for one in each)


def test_each_switch_counts_its_share(switches: SeveralSwitches) -> None:
    """Of 200 blocks of ones 100 are at each switch; a barrier is at one of them alone."""
    before = [system.count("round-completed") for system in switches.systems]

    def work(comm: p4reduce.Communicator) -> None:
        comm.allreduce(ONES[: 200 * BLOCK])
        comm.barrier()

    switches.run(2, work, slots=10, switches=[0, 1])
    now = [system.count("round-completed") for system in switches.systems]
    rounds = [after - earlier for after, earlier in zip(now, before, strict=True)]
    # Each of the 10 stripes is opened by a round of its own; one round is the barrier.
    assert rounds[:2] == [100 + 10 + 1, 100 + 10]
    assert not any(rounds[2:])


def test_shares_follow_what_the_ranks_measure_together(
    switches: SeveralSwitches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that find different rates cut alike, and not before all know of it."""
    rates = itertools.cycle([5000.0, 500.0, 1000.0, 1500.0])  # of one rank, and of the other
    monkeypatch.setattr(SwitchRate, "take", lambda rate: next(rates))

    deal, order = Dealer.deal, threading.Lock()

    def deal_alone(self: Dealer, calls: Any) -> Any:
        with order:  # so that one rank's rates are two in a row
            return deal(self, calls)

    monkeypatch.setattr(Dealer, "deal", deal_alone)

    def work(comm: p4reduce.Communicator) -> list[int]:
        blocks = []
        for _ in range(2 * PERIOD):
            assert (comm.allreduce(ONES) == 2).all()
            blocks.append(comm.switches[0].statistics.blocks)
        assert [switch.share for switch in comm.switches] == [0.625, 0.375]
        return np.diff(blocks, prepend=0).tolist()

    for blocks in switches.run(2, work, switches=[0, 1]):
        # 201 blocks a call, and the block by which the ranks agree, at either switch.
        # Nobody waits for that one, so it may be counted only with the next call.
        assert blocks[: PERIOD - 1] == [100] * (PERIOD - 1)
        assert sum(blocks[PERIOD - 1 : PERIOD + 1]) == 100 + 101
        assert blocks[PERIOD + 1 : 2 * PERIOD - 1] == [100] * (PERIOD - 2)
        assert blocks[-1] in (125, 126)


def test_a_mismatch_ends_everything_on_all_switches(switches: SeveralSwitches) -> None:
    """Also what was right and went through another switch, and without waiting for a deadline."""

    def work(comm: p4reduce.Communicator) -> list[Any]:
        comm.barrier()
        comm.allreduce(ONES)
        small = comm.allreduce_async(np.ones(5 + comm.rank, np.float32), name="odd")
        big = outcome(lambda: comm.allreduce_async(ONES, name="big"))
        errors = [outcome(small.wait)]
        errors += [outcome(big.wait)] if isinstance(big, p4reduce.Handle) else [big]
        return [*errors, outcome(comm.barrier), outcome(lambda: comm.allreduce(ONES))]

    for errors in switches.run(2, work, switches=[0, 1]):
        assert isinstance(errors[0], p4reduce.MismatchError)
        assert isinstance(errors[1], p4reduce.MismatchError) or (errors[1] == 2).all()
        assert all(isinstance(error, p4reduce.MismatchError) for error in errors[2:])


def test_parts_that_were_cut_in_different_places_are_a_mismatch(
    switches: SeveralSwitches, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = threading.local()  # a rank is a thread
    ranges = Shares.ranges

    def cut(self: Shares, blocks: int) -> list[tuple[int, int]]:
        at = 2 * blocks // 3
        return [(0, at), (at, blocks)] if getattr(odd, "one", False) else ranges(self, blocks)

    monkeypatch.setattr(Shares, "ranges", cut)

    def work(comm: p4reduce.Communicator) -> Any:
        odd.one = comm.rank == 0
        return outcome(lambda: comm.allreduce(ONES))

    for error in switches.run(2, work, switches=[0, 1]):
        assert isinstance(error, p4reduce.MismatchError), error
        assert "part 2 of 2" in str(error)


def test_an_overflow_is_named_by_its_place_in_the_whole_and_breaks_nothing(
    switches: SeveralSwitches,
) -> None:
    def work(comm: p4reduce.Communicator) -> str:
        array = np.zeros(BIG, np.int32)
        array[150 * BLOCK] = 2**30
        error = outcome(lambda: comm.allreduce(array))
        assert isinstance(error, p4reduce.LaneOverflowError)
        assert (comm.allreduce(ONES) == 2).all()
        return str(error)

    for text in switches.run(2, work, switches=[0, 1]):
        assert "within elements 38,400 to 38,655" in text


def test_a_rank_that_leaves_is_named(switches: SeveralSwitches) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        comm.allreduce(ONES)
        if comm.rank == 1:
            return None
        rank, first = comm.rank, outcome(lambda: comm.allreduce(ONES))
        new = comm.reform()
        with new:
            assert (new.rank, new.size) == (rank // 2, 2)
            assert (new.allreduce(ONES) == 2).all()
            assert len(new.switches) == 2
        return first

    for error in switches.run(WORLD, work, switches=[0, 1])[::2]:
        assert isinstance(error, p4reduce.WorkerLostError)
        assert error.ranks == (1,)


def test_groups_are_on_the_same_switches(switches: SeveralSwitches) -> None:
    def work(comm: p4reduce.Communicator) -> list[int]:
        group = comm.split(color=comm.rank % 2, key=-comm.rank)
        assert group is not None
        with group:
            assert (group.allreduce(ONES) == group.size).all()
            return [switch.statistics.blocks for switch in group.switches]

    blocks = switches.run(WORLD, work, switches=[0, 1])
    assert blocks[0] == blocks[2] == [100, 101]
    assert sum(blocks[1]) == 201  # a rank alone takes nothing of any switch


def test_ranks_with_unlike_numbers_of_switches_do_not_meet(switches: SeveralSwitches) -> None:
    job = switches.new_job()

    def two() -> Any:
        return outcome(lambda: switches.init(0, 2, job, [0, 1], timeout=2 * short_time()))

    def one() -> Any:
        with switches.init(1, 2, job, [0]) as comm:
            return outcome(lambda: comm.barrier(timeout=DEADLINE))

    errors = at_once([two, one])
    assert isinstance(errors[0], p4reduce.P4ReduceTimeoutError)
    assert f"job '{job}/side-1'" in str(errors[0])
    assert isinstance(errors[1], p4reduce.WorkerLostError)


def test_a_trace_tells_the_switches_apart(switches: SeveralSwitches, tmp_path: Path) -> None:
    """Each part is one of the trace's collectives, with the job that it is to its switch."""

    def work(comm: p4reduce.Communicator) -> None:
        with comm.trace(tmp_path / "{rank}.json"):
            comm.allreduce(ONES)

    switches.run(WORLD, work, switches=[0, 1])
    for rank in range(WORLD):
        events = json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"]
        parts = [one for one in events if one["ph"] == "b" and one["name"].startswith("allreduce")]
        assert len({one["id"] for one in parts}) == len(parts) == 2
        assert len({one["args"]["job"] for one in parts}) == 2


def barriers(comm: p4reduce.Communicator) -> None:
    for _ in range(3):
        comm.barrier()


def test_the_thread_that_spreads_errors_fails(
    switches: SeveralSwitches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank leaves all of its jobs, with the cause."""
    # It looks by itself only once a minute, and nothing wakes it here.
    monkeypatch.setattr(side_by_side, "LOOK", 0.5)
    fault = ThreadFault("p4reduce-side-1", "SideBySideSession.broken")
    job = switches.new_job()
    with fault_in_threads(fault):
        comms = at_once(
            [lambda rank=rank: switches.init(rank, 2, job, timeout=600.0) for rank in range(2)]
        )
        fault.arm()
        wait_for(fault.raised.is_set, "the thread has failed")
        errors = at_once([lambda comm=comm: outcome(lambda: barriers(comm)) for comm in comms])
        at_once([comm.close for comm in comms])
    assert repr(fault.error) in str(errors[1])
    assert isinstance(errors[0], p4reduce.WorkerLostError)
    assert errors[0].ranks == (1,)
