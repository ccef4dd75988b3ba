# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around an all-reduce through the embedded switch, and what users are told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.transport import open_port
from p4reduce_controller.jobs.leases import LOST_AFTER
from worker_system import (
    DEADLINE,
    LEASE,
    NO_OPERATION,
    System,
    at_once,
    in_time,
    outcome,
    silence,
    wait_for,
)

ONES = np.ones(3000, np.float32)


# -- Ranks that do not agree ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda comm: comm.allreduce(ONES[:2999]), id="size"),
        pytest.param(lambda comm: comm.allreduce(np.empty(0, np.float32)), id="no elements"),
        pytest.param(lambda comm: comm.allreduce(ONES.astype(np.float64)), id="dtype"),
        pytest.param(lambda comm: comm.allreduce(ONES, op=p4reduce.MEAN), id="operation"),
        pytest.param(lambda comm: comm.allreduce(ONES, name="b"), id="name"),
        pytest.param(lambda comm: comm.barrier(), id="barrier"),
    ],
)
def test_different_collectives_are_a_mismatch_on_all_ranks(
    system: System, other: Callable[[p4reduce.Communicator], Any]
) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        if comm.rank == 1:
            return outcome(lambda: other(comm))
        return outcome(lambda: comm.allreduce(ONES, name="a"))

    for error in system.run(3, work):
        assert isinstance(error, p4reduce.MismatchError), error
        assert "0" in str(error)


def test_another_order_is_a_mismatch_and_breaks_the_communicator(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> list[Any]:
        names = ["a", "b"] if comm.rank == 0 else ["b", "a"]
        first = comm.allreduce_async(ONES, name=names[0])
        # This one may find the communicator broken already.
        second = outcome(lambda: comm.allreduce_async(ONES, name=names[1]).wait())
        return [outcome(first.wait), second, outcome(lambda: comm.allreduce(ONES))]

    for errors in system.run(2, work):
        assert [type(error) for error in errors] == [p4reduce.MismatchError] * 3


# -- Ranks that do not come -----------------------------------------------------------------------


def test_timeout_names_the_missing_ranks_and_the_slot(system: System) -> None:
    released = threading.Event()
    together = threading.Barrier(2, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        if comm.rank in (1, 3):
            assert released.wait(DEADLINE)
            return None
        together.wait()  # neither is to miss the other
        try:
            return outcome(lambda: comm.allreduce(ONES, name="gradient", timeout=3.0))
        finally:
            if comm.rank == 0:
                released.set()

    for error in system.run(4, work)[::2]:
        assert isinstance(error, p4reduce.P4ReduceTimeoutError)
        assert isinstance(error, TimeoutError)
        assert error.missing == (1, 3)
        assert error.slot is not None
        assert 1.0 <= error.seconds < DEADLINE
        for text in ("'gradient'", "ranks 1, 3", f"slot {error.slot}"):
            assert text in str(error)


def test_waiting_for_less_than_the_deadline_ends_nothing(system: System) -> None:
    released = threading.Event()

    def work(comm: p4reduce.Communicator) -> Any:
        if comm.rank == 1:
            assert released.wait(DEADLINE)
        handle = comm.allreduce_async(ONES)
        if comm.rank == 0:
            with pytest.raises(p4reduce.P4ReduceTimeoutError, match=r"after 0\.05 s; it continues"):
                handle.wait(0.05)
            assert not handle.done()
            released.set()
        return handle.wait()

    for result in system.run(2, work):
        assert np.array_equal(result, 2 * ONES)


def test_leaving_without_taking_part_is_told_to_the_others(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        comm.allreduce(ONES)
        if comm.rank == 1:
            return None  # leaves
        return outcome(lambda: comm.allreduce(ONES)), outcome(lambda: comm.barrier())

    first, second = system.run(2, work)[0]
    for error in (first, second):
        assert isinstance(error, p4reduce.WorkerLostError), error
        assert error.ranks == (1,)
        assert "rank 1 left" in str(error)


def test_leaving_early_takes_nothing_from_the_others(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Results to rank 0 are lost often, so it still fetches some long after rank 1 has left.
    monkeypatch.setenv("P4REDUCE_FAULTS", "drop=0.9,up=0,seed=5")
    job = system.new_job()

    def patient() -> Any:
        with system.init(0, 2, job) as comm:
            return comm.allreduce(ONES)

    def hasty() -> Any:
        monkeypatch.delenv("P4REDUCE_FAULTS")
        with system.init(1, 2, job) as comm:
            return comm.allreduce(ONES)

    first = threading.Thread(target=lambda: results.append(patient()))
    results: list[Any] = []
    first.start()
    wait_for(
        lambda: any(
            member.rank == 0
            for one in system.control.call(system.control.stub.ListJobs, pb.ListJobsRequest()).jobs
            if one.name == job
            for member in one.members
        ),
        "rank 0 has joined",
    )
    assert np.array_equal(hasty(), 2 * ONES)
    first.join(2 * DEADLINE)
    assert np.array_equal(results[0], 2 * ONES)


CRASHING_RANK = """
import sys, time
import numpy as np, p4reduce
comm = p4reduce.init(1, 2, sys.argv[1], sys.argv[2], interface=sys.argv[3])
comm.allreduce(np.ones(3000, np.float32))
print("ready", flush=True)
{then}
"""


def crashing_rank(system: System, job: str, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            CRASHING_RANK.format(then=then),
            system.controller,
            job,
            system.interface(2),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_worker_is_named_and_not_before_its_lease_is_over(system: System) -> None:
    job = system.new_job()
    with crashing_rank(system, job, "time.sleep(60)") as other:
        with system.init(0, 2, job) as comm:
            comm.allreduce(ONES)
            handle = comm.allreduce_async(ONES)
            os.kill(other.pid, signal.SIGKILL)
            error = outcome(handle.wait)
        assert isinstance(error, p4reduce.WorkerLostError), error
        assert error.ranks == (1,)
        # Which of the two the controller sees first is a matter of moments.
        silent = silence(error)
        if silent is None:
            assert "its process has ended" in str(error)
        else:
            assert silent >= LOST_AFTER * LEASE


def test_a_worker_that_ends_by_an_exception_leaves_at_once(system: System) -> None:
    job = system.new_job()
    with (
        crashing_rank(system, job, "raise RuntimeError('as planned')") as other,
        system.init(0, 2, job) as comm,
    ):
        comm.allreduce(ONES)
        error = outcome(lambda: comm.allreduce(ONES))
        assert isinstance(error, p4reduce.WorkerLostError), error
        assert "left" in str(error)
        stderr = other.communicate(timeout=DEADLINE)[1]
        assert other.returncode == 1
        assert stderr.strip().endswith("RuntimeError: as planned")


def test_deleting_the_job_ends_what_is_under_way(system: System) -> None:
    job = system.new_job()
    comms = at_once([lambda rank=rank: system.init(rank, 2, job) for rank in range(2)])
    try:
        handle = comms[0].allreduce_async(ONES)
        system.control.call(system.control.stub.DeleteJob, pb.DeleteJobRequest(name=job))
        error = outcome(handle.wait)
        assert isinstance(error, p4reduce.JobEndedError), error
        assert "deleted" in str(error)
        assert isinstance(outcome(comms[0].barrier), p4reduce.JobEndedError)
    finally:
        for comm in comms:
            comm.close()


# -- Numbers that do not fit ----------------------------------------------------------------------


def test_int32_overflow_is_an_error_on_all_ranks_and_breaks_nothing(system: System) -> None:
    array = np.zeros(2000, np.int32)
    array[1500] = 2**30

    def work(comm: p4reduce.Communicator) -> Any:
        before = comm.allreduce_async(ONES)
        error = outcome(lambda: comm.allreduce(array, name="counts"))
        return before.wait(), error, comm.allreduce(array // 2)

    for before, error, after in system.run(2, work):
        assert np.array_equal(before, 2 * ONES)
        assert isinstance(error, p4reduce.LaneOverflowError)
        assert isinstance(error, OverflowError)
        assert error.block == 1500 // 256
        assert "'counts'" in str(error)
        assert "1,280 to 1,535" in str(error)
        assert after[1500] == 2**30


@pytest.mark.parametrize("value", [2.0**128, -1e300])
def test_float64_beyond_float32_is_refused_before_anything_is_sent(
    alone: p4reduce.Communicator, value: float
) -> None:
    array = np.ones(1000)
    array[700] = value
    sent = alone.stats.frames_sent
    with pytest.raises(p4reduce.ValueRangeError, match=str(value).replace("+", r"\+")):
        alone.allreduce(array)
    assert alone.stats.frames_sent == sent
    assert alone.allreduce(np.ones(3)).tolist() == [1, 1, 1]


# -- Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "options", "error", "text"),
    [
        (np.ones(3, np.int64), {}, TypeError, "int64.*float16, .*int32"),
        (np.ones(3, ">f4"), {}, TypeError, ">f4"),
        (np.ones(3, np.complex64), {}, TypeError, "complex64"),
        (np.ones(3, bool), {}, TypeError, "bool"),
        ([1.0, 2.0], {}, TypeError, "list"),
        (np.ones(3, np.int32), {"op": p4reduce.MEAN}, TypeError, "MEAN.*int32"),
        (ONES, {"op": NO_OPERATION}, ValueError, f"'{NO_OPERATION}'"),
        (ONES, {"out": np.ones(5, np.float32)}, ValueError, r"\(5,\)"),
        (ONES, {"out": np.ones(3000)}, ValueError, "float64"),
        (ONES, {"out": [0.0] * 3000}, TypeError, "list"),
        (ONES, {"out": np.ones(6000, np.float32)[::2]}, ValueError, "contiguous"),
        (ONES, {"out": np.broadcast_to(np.float32(1), 3000)}, ValueError, "contiguous|read-only"),
        (ONES, {"timeout": 0}, ValueError, "timeout=0"),
        (ONES, {"timeout": -1.0}, ValueError, "timeout=-1"),
        (ONES, {"timeout": float("nan")}, ValueError, "timeout=nan"),
    ],
)
def test_wrong_arguments_are_named(
    alone: p4reduce.Communicator,
    array: Any,
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        alone.allreduce(array, **options)
    assert np.array_equal(alone.allreduce(ONES), ONES)


def test_overlapping_out_is_refused(alone: p4reduce.Communicator) -> None:
    memory = np.ones(1001, np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        alone.allreduce(memory[:1000], out=memory[1:])


def test_read_only_out_is_refused(alone: p4reduce.Communicator) -> None:
    out = np.empty_like(ONES)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        alone.allreduce(ONES, out=out)


# -- Joining -------------------------------------------------------------------------------------


def test_a_taken_rank_is_refused(system: System) -> None:
    job = system.new_job()
    with system.init(0, 1, job), pytest.raises(p4reduce.AdmissionError, match="rank 0"):
        system.init(0, 1, job, interface=system.interface(2))


def test_a_port_with_a_worker_is_refused(system: System) -> None:
    if not system.interface(1).startswith("unix:"):
        pytest.skip("only a Unix socket belongs to one process; an interface may have several")
    with (
        # As another process would, which shares nothing with `init` in this one.
        contextlib.closing(open_port(system.interface(1), 0)),
        pytest.raises(p4reduce.SwitchUnreachableError, match="another worker has this port"),
    ):
        system.init(0, 1, system.new_job(), timeout=2.0)


def test_another_world_size_is_refused(system: System) -> None:
    job = system.new_job()
    with system.init(0, 1, job), pytest.raises(p4reduce.AdmissionError, match="world size 2"):
        system.init(1, 2, job)


def test_too_many_slots_are_refused(system: System) -> None:
    with (
        system.init(0, 1, system.new_job(), slots=600),
        pytest.raises(p4reduce.AdmissionError, match="no 600 slots"),
    ):
        system.init(0, 1, system.new_job(), slots=600, interface=system.interface(2))


@pytest.mark.parametrize("slots", [0, -3])
def test_number_of_slots_is_checked(system: System, slots: int) -> None:
    with pytest.raises(ValueError, match=f"slots={slots}"):
        system.init(0, 1, system.new_job(), slots=slots)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 4097), (0, 0), (2, 2), (-1, 2)])
def test_rank_and_world_size_are_checked(system: System, rank: int, world_size: int) -> None:
    with pytest.raises(p4reduce.ConfigurationError, match=f"{rank}|{world_size}"):
        system.init(rank, world_size, system.new_job())


def test_missing_ranks_are_named_when_joining(system: System) -> None:
    with pytest.raises(p4reduce.P4ReduceTimeoutError, match=r"rank.*1.*not joined") as caught:
        in_time(lambda timeout: system.init(0, 2, system.new_job(), timeout=timeout), 0.5)
    assert caught.value.missing == (1,)


def test_a_rank_can_join_again_after_that(system: System) -> None:
    job = system.new_job()
    with pytest.raises(p4reduce.P4ReduceTimeoutError):
        in_time(lambda timeout: system.init(0, 2, job, timeout=timeout), 0.3)
    with system.init(0, 1, job) as comm:
        assert comm.allreduce(np.float32(3)) == 3


def test_a_job_can_follow_one_of_the_same_name(system: System) -> None:
    job = system.new_job()
    for value in range(3):
        for rank, total in enumerate(
            at_once(
                [
                    lambda rank=rank, value=value: one_sum(system, rank, job, value)
                    for rank in range(2)
                ]
            )
        ):
            assert total == 2 * value, rank


def one_sum(system: System, rank: int, job: str, value: int) -> float:
    with system.init(rank, 2, job) as comm:
        return float(comm.allreduce(np.float32(value)))


def test_no_controller(system: System, tmp_path: Path) -> None:
    with pytest.raises(p4reduce.ControllerUnreachableError, match=r"nobody\.sock"):
        system.init(0, 1, "job", controller=f"unix:{tmp_path}/nobody.sock", timeout=2.0)


def test_no_switch(system: System, tmp_path: Path) -> None:
    with pytest.raises(p4reduce.SwitchUnreachableError, match=r"gone\.sock.*no such socket"):
        system.init(0, 1, "job", interface=f"unix:{tmp_path}/gone.sock", timeout=2.0)


# -- The end -------------------------------------------------------------------------------------


def test_closing_waits_for_what_is_under_way_and_may_be_repeated(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        handle = comm.allreduce_async(np.ones(50_000, np.float32))
        comm.close()
        assert handle.done()
        comm.close()
        return handle.wait(), outcome(lambda: comm.allreduce(ONES)), repr(comm)

    for result, error, text in system.run(2, work):
        assert (result == 2).all()
        assert isinstance(error, p4reduce.ClosedError)
        assert "closed" in text


def test_statistics_remain_after_closing(system: System) -> None:
    with system.init(0, 1, system.new_job()) as comm:
        comm.allreduce(ONES)
    assert comm.stats.collectives == 1


def test_an_error_in_the_block_does_not_wait(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        if comm.rank == 0:
            handles.append(comm.allreduce_async(ONES))  # which rank 1 never joins
            raise KeyError
        wait_for(lambda: handles and handles[0].done(), "rank 0 has left")
        return None

    handles: list[p4reduce.Handle] = []
    with pytest.raises(KeyError):
        system.run(2, work)
    assert isinstance(outcome(handles[0].wait), p4reduce.ClosedError)


def test_a_forked_child_is_told(alone: p4reduce.Communicator) -> None:
    child = os.fork()
    if child == 0:
        error = outcome(lambda: alone.allreduce(ONES))
        os._exit(isinstance(error, p4reduce.ClosedError) and "forked" in str(error))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert np.array_equal(alone.allreduce(ONES), ONES)


def test_a_forked_child_does_not_wait_for_what_its_parent_started(system: System) -> None:
    """Nothing in the child could end it; what was over before the fork is there."""

    def work(comm: p4reduce.Communicator) -> int:
        if comm.rank:
            comm.allreduce(np.empty(0, np.float32))
            wait_for(lambda: forked, "rank 0 has forked")
            comm.allreduce(ONES)
            return 0
        over = comm.allreduce_async(np.empty(0, np.float32), timeout=DEADLINE)
        over.wait()
        in_flight = comm.allreduce_async(ONES, timeout=DEADLINE)
        child = os.fork()
        if child == 0:
            error = outcome(in_flight.wait)
            told = isinstance(error, p4reduce.ClosedError) and "was forked" in str(error)
            os._exit(told and over.wait().size == 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        forked.append(child)
        assert np.array_equal(in_flight.wait(), 2 * ONES)
        return code

    forked: list[int] = []
    assert system.run(2, work) == [1, 0]


# -- Arguments that one rank cannot convert -------------------------------------------------------


class Unreadable:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or RuntimeError("on another device")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error


class Once(Unreadable):
    """An array that is there when it is asked for the first time."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        if self.error.args == ("asked for",):
            raise self.error
        self.error = RuntimeError("asked for")
        return np.full(3, 5, np.int32)


INTEGERS = np.arange(6, dtype=np.int32)
FEW = p4reduce.SparseElements([1, 4], np.ones(2, np.float32), 900)


def test_a_conversion_that_fails_on_one_rank_takes_no_place_in_the_order(system: System) -> None:
    """The rank calls again, with what it should have given; the others notice nothing."""
    calls: list[Callable[[p4reduce.Communicator, Any], Any]] = [
        lambda comm, array: comm.allreduce(array),
        lambda comm, array: comm.allreduce(array, out=np.empty(6, np.int32)),
        lambda comm, array: comm.allreduce_async(array).wait(),
        lambda comm, array: comm.grouped_allreduce([INTEGERS, array])[1],
        lambda comm, array: comm.broadcast(array, 1),
        lambda comm, array: comm.reduce(array, root=1),
        lambda comm, array: comm.reduce_scatter(array, counts=[4, 2]),
        lambda comm, array: comm.allgather(array),
        lambda comm, array: comm.allgather(array, counts=[6, 6]),
        lambda comm, array: comm.allreduce(array, deadline=DEADLINE, at_least=2).result,
    ]

    def through(comm: p4reduce.Communicator) -> list[Any]:
        results = []
        for call in calls:
            if comm.rank == 1:
                with pytest.raises(TypeError, match="on another device"):
                    call(comm, Unreadable())
            results.append(call(comm, INTEGERS))
        if comm.rank == 1:
            with pytest.raises(TypeError, match="on another device"):
                comm.allreduce_async(Unreadable())
        results.append(comm.allreduce_sparse(FEW, dense=True)[[1, 4]])
        assert comm.broken is None
        return results

    def work(comm: p4reduce.Communicator) -> list[list[Any]]:
        half = comm.split(0, slots=4)
        assert half is not None
        with half, comm.dup(slots=4) as twin:
            return [through(one) for one in (comm, half, twin)]

    twice = (2 * INTEGERS).tolist()
    for rank, of_each in enumerate(system.run(2, work, slots=8)):
        part = twice[:4] if rank == 0 else twice[4:]
        reduced = None if rank == 0 else twice
        both = INTEGERS.tolist() * 2
        right = [twice, twice, twice, twice, INTEGERS.tolist(), reduced, part, both, both, twice]
        for results in of_each:
            lists = [None if one is None else one.tolist() for one in results]
            assert lists == [*right, [2.0, 2.0]]


class OfCuda:
    __cuda_array_interface__: ClassVar[dict[str, Any]] = {
        "shape": (6,),
        "typestr": "<i4",
        "data": (0, False),
        "version": 3,
    }


class OfDevice(Unreadable):
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, 0  # kDLROCM


class NeedsGradient(OfDevice):
    """As a tensor of torch that is on a GPU and has `requires_grad`."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")


@pytest.mark.parametrize(
    "array", [OfCuda(), OfDevice(), NeedsGradient()], ids=["CUDA", "ROCm", "needs a gradient"]
)
def test_an_array_of_a_device_is_refused_with_what_to_do(system: System, array: Any) -> None:
    def work(comm: p4reduce.Communicator) -> list[int]:
        if comm.rank == 1:
            with pytest.raises(TypeError, match=r"is in a device's memory: copy it to the host"):
                comm.allreduce(array)
        total: list[int] = comm.allreduce(INTEGERS).tolist()
        return total

    assert system.run(2, work) == [(2 * INTEGERS).tolist()] * 2


@pytest.mark.parametrize(
    "out",
    [
        pytest.param(np.empty(5, np.int32), id="rows"),
        pytest.param(np.empty(7, np.int64), id="dtype"),
        pytest.param([0] * 7, id="no array"),
    ],
)
def test_an_output_that_proves_wrong_after_the_counts_breaks_nothing(
    system: System, out: Any
) -> None:
    """The others wait for this rank's rows by then, and get them."""

    def work(comm: p4reduce.Communicator) -> Any:
        mine = np.full(3 + comm.rank, comm.rank, np.int32)
        if comm.rank == 1:
            with pytest.raises((TypeError, ValueError), match="out"):
                comm.allgather(mine, out=out)
        else:
            assert comm.allgather(mine).tolist() == [0] * 3 + [1] * 4
        assert comm.broken is None
        return comm.allgather(mine).tolist()

    assert system.run(2, work) == [[0] * 3 + [1] * 4] * 2


def test_an_array_is_asked_for_its_numbers_once(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        gathered = comm.allgather(Once()).tolist()
        late = comm.allreduce(Once(), deadline=DEADLINE, at_least=2).result.tolist()
        return gathered, late

    assert system.run(2, work) == [([5] * 6, [10] * 3)] * 2
