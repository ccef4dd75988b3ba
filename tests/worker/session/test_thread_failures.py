# SPDX-License-Identifier: Apache-2.0
"""Threads of a rank that meet an exception nobody expects: the cause is told, and nobody waits.

Other threads are in test_heartbeat_failure.py, in `test_the_thread_that_spreads_errors_fails` and
in `test_a_network_that_nobody_watches_any_more`; those of the controller in test_thread_faults.py
of its own tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import p4reduce
import pytest
from fault_system import FaultSystem
from p4reduce.late import FractionalRepetition
from thread_faults import ThreadFault, fault_in_threads
from worker_system import System, at_once, outcome, wait_for

embedded = pytest.mark.parametrize("system", ["embedded"], indirect=True)
ONES = np.ones(3000, np.float32)
PATIENT = 600.0  # seconds: more than the test has, so that no deadline ends a call


def calls(comm: p4reduce.Communicator) -> BaseException | None:
    """Call again and again; return the first error."""
    for _ in range(5):
        for call in (lambda: comm.allreduce_async(ONES).wait(), comm.barrier):
            error = outcome(call)
            if isinstance(error, BaseException):
                return error
    return None


@contextlib.contextmanager
def two_ranks(system: System, **options: Any) -> Iterator[list[p4reduce.Communicator]]:
    job = system.new_job()
    options = {"timeout": PATIENT} | options
    comms = at_once([lambda rank=rank: system.init(rank, 2, job, **options) for rank in range(2)])
    try:
        yield comms
    finally:
        at_once([comm.close for comm in comms])


def assert_both_hear(errors: list[BaseException | None], what: str, fault: ThreadFault) -> None:
    assert fault.raised.is_set()
    assert isinstance(errors[1], p4reduce.P4ReduceError)
    assert f"{what} failed: {fault.error!r}" in str(errors[1])
    assert isinstance(errors[0], p4reduce.WorkerLostError)
    assert errors[0].ranks == (1,)
    assert "lease" not in str(errors[0])  # rank 1 has left; nobody waited for that


@embedded
@pytest.mark.parametrize(
    "function",
    [
        "WorkerPort._iteration",
        "WorkerPort.add_engine.<locals>.<lambda>",  # a request to the port
        "Engine.begin_iteration",
        "Engine.run_iteration",
        "SlotMachine.submit",  # a request to an engine
        "NativeStream.__init__",
        "NativeIteration.run",
        "SlotMachine.take_events",
        "SlotMachine._close",  # within the end of a collective
        "Collective.finish",
    ],
)
def test_progress(system: System, function: str) -> None:
    """Whatever it does just then, the calls that it works on end, and the rank leaves."""
    fault = ThreadFault("p4reduce-1", function)
    with fault_in_threads(fault):
        if function.startswith("WorkerPort.add_engine"):
            fault.arm()  # before the first engine begins
        with two_ranks(system) as comms:
            fault.arm()
            assert_both_hear(
                at_once([lambda comm=comm: calls(comm) for comm in comms]),
                "the progress thread",
                fault,
            )


@embedded
@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError(), SystemExit(3)], ids=repr)
def test_progress_by_any_exception(system: System, error: BaseException) -> None:
    fault = ThreadFault("p4reduce-1", "NativeIteration.run", error)
    with fault_in_threads(fault), two_ranks(system) as comms:
        fault.arm()
        errors = at_once([lambda comm=comm: calls(comm) for comm in comms])
        assert_both_hear(errors, "the progress thread", fault)


@embedded
@pytest.mark.parametrize("function", ["reported", "explained"])
def test_comparing_calls(system: System, function: str, caplog: pytest.LogCaptureFixture) -> None:
    """The mismatch is raised, without what the others have called."""
    fault = ThreadFault("p4reduce-compare-1", function)
    with fault_in_threads(fault), two_ranks(system) as comms:
        fault.arm()
        works = [
            lambda comm=comm: outcome(lambda: comm.allreduce_async(ONES[comm.rank :]).wait())
            for comm in comms
        ]
        errors = at_once(works)
    assert fault.raised.is_set()
    assert all(isinstance(error, p4reduce.MismatchError) for error in errors)
    assert repr(fault.error) in caplog.text


@embedded
@pytest.mark.parametrize("function", ["RankProxy._answered", "RankProxy._do"])
def test_late_sums(system: System, function: str) -> None:
    """Its own sums raise the cause, and the others go on without the rank."""
    fault = ThreadFault("p4reduce-late-1", function)

    def work(comm: p4reduce.Communicator) -> Any:
        with FractionalRepetition(comm, 2, timeout=PATIENT) as coded:
            coded.sum(lambda part: ONES)
            if comm.rank == 0:
                wait_for(lambda: coded.lost, "rank 1 has gone")
                return coded.sum(lambda part: ONES).result
            fault.arm()
            return outcome(lambda: [coded.sum(lambda part: ONES) for _ in range(5)])

    with fault_in_threads(fault), two_ranks(system) as comms:
        result, error = at_once([lambda comm=comm: work(comm) for comm in comms])
    assert fault.raised.is_set()
    assert isinstance(error, p4reduce.P4ReduceError)
    assert str(fault.error) in str(error)
    assert (result == 2 * ONES).all()


@pytest.mark.parametrize("fault_system", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("thread", "function"),
    [
        ("p4reduce-recover-1", "RecoveryProtocol._halted"),
        ("p4reduce-recover-1", "Recovery._next_event"),
        ("p4reduce-recover-1-HaltEngine", "Recovery._halt"),
        ("p4reduce-recover-1-AskController", "JobClient.heartbeat"),
        ("p4reduce-recover-1-ResumeSession", "Session.resume"),
    ],
)
def test_recovery(broken: FaultSystem, thread: str, function: str) -> None:
    """After a loss of the switch: no call waits until its deadline."""
    fault = ThreadFault(thread, function)
    with fault_in_threads(fault), two_ranks(broken) as comms:
        fault.arm()
        at_once([comm.barrier for comm in comms])
        broken.restart_switch()
        errors = at_once([lambda comm=comm: calls(comm) for comm in comms])
    assert_both_hear(errors, "recovering", fault)
