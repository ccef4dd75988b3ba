# SPDX-License-Identifier: Apache-2.0
"""`split` and `dup`: groups of ranks, each a job of its own, on the ports of their parent."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from worker_system import System, at_once, outcome, wait_for

EMBEDDED = pytest.mark.parametrize("system", ["embedded"], indirect=True)
WORLD = 4
SLOTS = 1024  # of the switch
MANY = int(os.environ.get("P4REDUCE_TEST_GROUPS", "30"))


def floats(rng: np.random.Generator, size: int = 5000) -> np.ndarray:
    return rng.integers(-1000, 1000, size).astype(np.float32)


def living(system: System, prefix: str) -> list[str]:
    reply = system.control.call(system.control.stub.ListJobs, pb.ListJobsRequest())
    return [
        job.name
        for job in reply.jobs
        if job.name.startswith(prefix) and job.state in (pb.FORMING, pb.RUNNING)
    ]


def own_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if name.startswith("p4reduce"))


def test_groups_are_those_of_mpi(system: System, rng: np.random.Generator) -> None:
    """Colours make groups, keys their order, equal keys the old one; and None is none."""
    arrays = [floats(rng) for _ in range(WORLD)]
    colors = [7, 0, None, 7]
    keys = [5, 0, 0, -5]

    def work(comm: p4reduce.Communicator) -> Any:
        child = comm.split(colors[comm.rank], keys[comm.rank])
        if child is None:
            comm.barrier()
            return None
        with child:
            total = child.allreduce(arrays[comm.rank])
            comm.barrier()
            return child.rank, child.size, child.job, total

    first, alone, none, second = system.run(WORLD, work)
    assert none is None
    assert first[:2] == (1, 2)
    assert second[:2] == (0, 2)
    assert alone[:2] == (0, 1)
    assert first[2] == second[2] != alone[2]
    assert np.array_equal(first[3], arrays[0] + arrays[3])
    assert np.array_equal(second[3], first[3])
    assert np.array_equal(alone[3], arrays[1])


def test_parent_and_children_at_the_same_time(system: System, rng: np.random.Generator) -> None:
    """From several threads, each with a communicator of its own."""
    arrays = [floats(rng, 60_000) for _ in range(WORLD)]
    rounds = 5

    def work(comm: p4reduce.Communicator) -> None:
        half = comm.split(comm.rank % 2)
        again = comm.dup(slots=8)
        assert half is not None
        with half, again:
            ours = arrays[comm.rank % 2] + arrays[comm.rank % 2 + 2]

            def sums(one: p4reduce.Communicator, expected: np.ndarray) -> None:
                for _ in range(rounds):
                    handles = [one.allreduce_async(arrays[comm.rank]) for _ in range(3)]
                    for handle in handles:
                        assert np.array_equal(handle.wait(), expected)

            total = sum(arrays)
            at_once(
                [
                    lambda: sums(comm, total),
                    lambda: sums(half, ours),
                    lambda: sums(again, total),
                ]
            )
            assert comm.stats.invalid == half.stats.invalid == again.stats.invalid == 0

    system.run(WORLD, work)


def test_groups_of_groups_outlive_their_parents(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        half = comm.split(comm.rank // 2)
        assert half is not None
        swapped = half.split(0, -half.rank)
        assert swapped is not None
        half.close()
        comm.close()
        with swapped:
            assert (swapped.rank, swapped.size) == (1 - comm.rank % 2, 2)
            gathered = swapped.allgather(np.array([comm.rank]), counts=[1, 1])
            pair = comm.rank // 2 * 2
            assert gathered.tolist() == [pair + 1, pair]
            with pytest.raises(p4reduce.ClosedError):
                half.split(0)

    system.run(WORLD, work)


def test_a_rank_alone_takes_nothing(system: System, rng: np.random.Generator) -> None:
    """Neither a job nor a thread; and its results are those of a job of one rank."""
    array = rng.standard_normal(3000).astype(np.float32)
    array[700] = np.nan
    whole = rng.integers(-100, 100, 999).astype(np.int16)
    job = system.new_job()
    with system.init(0, 1, job) as comm:
        threads = own_threads()
        alone = comm.split(3)
        assert alone is not None
        assert own_threads() == threads
        assert living(system, job) == [job]
        for precision in (None, "int16", "int8"):
            mine = alone.allreduce(array, "mean", precision=precision, seed=5)
            switched = comm.allreduce(array, "mean", precision=precision, seed=5)
            if precision is None:
                assert np.array_equal(mine, switched, equal_nan=True)
            assert np.isnan(mine[512:768]).all()
        assert np.array_equal(alone.allreduce(whole, out=whole.copy()), whole)
        assert np.array_equal(alone.broadcast(array), array, equal_nan=True)
        assert np.array_equal(alone.reduce_scatter(whole), whole)
        assert np.array_equal(alone.allgather(array), array, equal_nan=True)
        alone.barrier()
        assert alone.stats.collectives == 9  # an allgather without counts is two
        assert alone.stats.frames_sent == 0
        further = alone.dup()
        with pytest.raises(ValueError, match="color=-1"):
            further.split(-1)
        alone.close()
        with pytest.raises(p4reduce.ClosedError):
            alone.barrier()
        further.barrier()
        with pytest.raises(p4reduce.AdmissionError, match="one rank"):
            further.reform()


@EMBEDDED
@pytest.mark.parametrize(
    ("color", "error"), [(-1, ValueError), ("red", TypeError), (1.5, TypeError), (True, TypeError)]
)
def test_a_wrong_color_is_told_to_all(system: System, color: Any, error: type[Exception]) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(error, match=f"color={color!r}"):
                comm.split(color)
        else:
            with pytest.raises(p4reduce.ConfigurationError, match="arguments of rank 1 are wrong"):
                comm.split(0)
        comm.barrier()  # nothing is broken

    system.run(2, work)


@EMBEDDED
def test_an_unknown_option_is_told_to_all(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(TypeError, match=r"split\(\) has no option 'slot'; did you mean"):
                comm.split(0, slot=8)  # type: ignore[call-arg]
        else:
            with pytest.raises(p4reduce.ConfigurationError, match="arguments of rank 1 are wrong"):
                comm.split(0)
        comm.barrier()  # nothing is broken

    system.run(2, work)


@EMBEDDED
def test_slots_have_to_be_the_same_in_a_group(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        with pytest.raises(p4reduce.ConfigurationError, match="rank 2 asked for another one"):
            comm.split(0, slots=16 if comm.rank == 2 else 8)
        child = comm.split(comm.rank // 2, slots=8 + comm.rank // 2)
        assert child is not None
        with child:
            assert child.slots == 8 + comm.rank // 2

    system.run(4, work)


@EMBEDDED
def test_a_switch_without_slots_says_what_would_free_some(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        with pytest.raises(p4reduce.AdmissionError, match=r"no 1024 slots in a row.*close") as info:
            comm.split(0 if comm.rank else None, slots=1024)
        assert "ranks 1, 2" in str(info.value)
        comm.barrier()

    system.run(3, work)
    wait_for(lambda: system.slots_free() == SLOTS, "all slots are free again")


@EMBEDDED
def test_ranks_that_call_something_else_disagree(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        error = outcome(lambda: comm.split(0) if comm.rank else comm.dup())
        assert isinstance(error, p4reduce.MismatchError)

    system.run(2, work)


@EMBEDDED
def test_two_calls_of_init_share_a_port(system: System) -> None:
    def work(rank: int) -> None:
        with system.init(rank, 2, first) as one, system.init(rank, 2, second) as other:
            both = one.allreduce_async(np.ones(9000)), other.allreduce_async(np.ones(90_000))
            for handle in both:
                assert (handle.wait() == 2).all()

    first, second = system.new_job(), system.new_job()
    at_once([lambda: work(0), lambda: work(1)])


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _entries(system: System) -> dict[str, int]:
    names = system.control.call(system.control.stub.GetTable, pb.GetTableRequest()).names
    tables = {
        name: system.control.call(system.control.stub.GetTable, pb.GetTableRequest(name=name))
        for name in names
    }
    return {name: len(table.entries) for name, table in tables.items()}


@pytest.mark.long
@EMBEDDED
def test_groups_leave_nothing_behind(system: System) -> None:
    """No job, no slot, no entry, no thread, no descriptor, and no memory.

    P4REDUCE_TEST_GROUPS=1000 makes as many of them.
    """
    job = system.new_job()
    comms = at_once([lambda rank=rank: system.init(rank, 2, job) for rank in range(2)])
    ones = np.ones(600, np.float32)

    def some(comm: p4reduce.Communicator, number: int) -> None:
        for _ in range(number):
            with comm.dup() as child:
                assert child.allreduce(ones)[0] == 2

    def groups(number: int) -> None:
        at_once([lambda comm=comm: some(comm, number) for comm in comms])

    try:
        groups(30)  # what is made once and kept
        free = SLOTS - comms[0].slots
        wait_for(lambda: system.slots_free() == free, "only the parent has slots")
        gc.collect()
        threads, descriptors = own_threads(), _descriptors()
        entries, resident = _entries(system), _resident()
        for done in range(0, MANY, 100):  # at_once waits for so long only
            groups(min(100, MANY - done))
        wait_for(lambda: living(system, job) == [job], "the children's jobs have ended")
        wait_for(lambda: system.slots_free() == free, "their slots are free")
        wait_for(lambda: _entries(system) == entries, "their entries are gone")
        wait_for(lambda: own_threads() == threads, f"our threads are {threads} again")
        # gRPC opens and closes a few of its own as it likes; a leak would be one per group.
        wait_for(
            lambda: _descriptors() <= descriptors + 5, f"descriptors are about {descriptors} again"
        )
        gc.collect()
        assert _resident() - resident < 16 << 20
    finally:
        at_once([comm.close for comm in comms])


@EMBEDDED
def test_a_rank_that_is_lost_meanwhile(system: System) -> None:
    """It left the parent, and the others hear so at once, not when their time is up."""
    job = system.new_job()
    comms = at_once([lambda rank=rank: system.init(rank, 3, job) for rank in range(3)])
    works = [lambda comm=comm: outcome(lambda: comm.split(0)) for comm in comms[:2]]
    errors = at_once([*works, lambda: comms[2].__exit__(RuntimeError, None, None)])
    for error in errors[:2]:
        assert isinstance(error, p4reduce.WorkerLostError)
        assert error.ranks == (2,)
    at_once([comm.close for comm in comms])
