# SPDX-License-Identifier: Apache-2.0
"""Collectives that the thread that waits for them runs itself, by shared memory and by UDP."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from interrupting import interrupted, places
from p4reduce.communicator import Communicator
from p4reduce.machine_code import native_library
from p4reduce.protocol.native_iteration import LinkLock
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session import engine
from p4reduce.session.port import PORTS, WorkerPort
from p4reduce.tensors.stream import Collective
from p4reduce.transport.link import FramesOverLink
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.udp_ports import udp_ports
from worker_system import DEADLINE, System, at_once, outcome, running_system

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no machine code here")

SAMPLE = 10  # of the places where an exception is raised; drawn again each time
RANKS = 2


@pytest.fixture(scope="module", params=["shared memory", "UDP"])
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    ports = udp_ports(RANKS) if request.param == "UDP" else RANKS
    with running_system(lambda place: EmbeddedSwitch(place, ports), ports=RANKS) as running:
        yield running


def port_of(system: System, comm: Communicator) -> WorkerPort:
    found = PORTS.named(system.interface(1 + comm.rank))
    assert found is not None
    return found


def lock_of(system: System, comm: Communicator) -> LinkLock:
    lock = port_of(system, comm).lock
    assert lock is not None
    return lock


@contextlib.contextmanager
def two(system: System, **options: Any) -> Iterator[list[Communicator]]:
    job = system.new_job()
    comms = at_once([lambda rank=rank: system.init(rank, 2, job, **options) for rank in range(2)])
    try:
        yield comms
    finally:
        at_once([comm.close for comm in comms])


def wait_until_free(system: System, comm: Communicator) -> None:
    """The progress thread rests soon after what it had to do, and rests no longer than needed."""
    end = time.monotonic() + DEADLINE
    while not lock_of(system, comm).is_free:
        assert time.monotonic() < end
        port_of(system, comm).post(lambda: None)
        time.sleep(0.001)


def test_the_caller_runs_it(system: System) -> None:
    def work(comm: Communicator) -> tuple[int, p4reduce.Statistics]:
        comm.barrier()
        wait_until_free(system, comm)
        before, calls = comm.stats, lock_of(system, comm).calls
        wait_until_free(system, comm)
        for number in range(10):
            share = np.full(700, number + comm.rank, np.float32)
            assert (comm.allreduce(share) == 2 * number + 1).all()
        after = comm.stats
        assert after.collectives - before.collectives == 10
        assert after.blocks - before.blocks == 10 * 3
        assert after.blocks_sent - before.blocks_sent >= 10 * 3 - 3  # zeros are not sent
        assert after.frames_received > before.frames_received
        return lock_of(system, comm).calls - calls, after

    for calls, figures in system.run(2, work):
        assert calls > 0
        made = figures.blocks_sent + figures.empty_sent
        again = figures.retransmissions + figures.padded  # by a busy machine's timers
        assert made <= figures.frames_sent <= made + again


def test_in_any_order_with_what_others_start(system: System, rng: np.random.Generator) -> None:
    """Callers, the progress thread, two communicators of a port: all ranks have the same order."""
    ways, sizes = rng.integers(0, 3, 120), rng.integers(1, 3000, 120)

    def run(comm: Communicator, seed: int) -> None:
        pauses = np.random.default_rng([seed, comm.rank])
        running: list[tuple[p4reduce.Handle[npt.NDArray[Any]], int]] = []
        for step, (way, size) in enumerate(zip(ways.tolist(), sizes.tolist(), strict=True)):
            share = np.full(size, step * (comm.rank + 1), np.int32)
            if pauses.random() < 0.2:
                time.sleep(pauses.random() * 0.004)
            if way == 0:
                running.append((comm.allreduce_async(share), step))
            elif way == 1:
                assert (comm.allreduce(share) == 3 * step).all()
            else:
                comm.barrier()
            while running and (len(running) > 3 or pauses.random() < 0.3):
                handle, of = running.pop(0)
                assert (handle.wait() == 3 * of).all()
        for handle, of in running:
            assert (handle.wait() == 3 * of).all()

    with two(system) as comms, two(system) as others:
        both = [(comm, seed) for seed, some in enumerate([comms, others]) for comm in some]
        at_once([lambda comm=comm, seed=seed: run(comm, seed) for comm, seed in both])
        assert sum(lock_of(system, comm).calls for comm in comms) > 0


def test_several_busy_jobs_of_a_port_run_in_c(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job gets its own answers alone, and nobody waits in Python."""
    calls: list[str] = []
    with two(system) as comms, two(system) as others:
        at_once([comm.barrier for comm in (*comms, *others)])
        for name in ("wait", "receive"):
            monkeypatch.setattr(FramesOverLink, name, lambda *_, **__: calls.append("in Python"))

        def work(comm: Communicator, factor: int) -> None:
            shares = [np.full(20_000, factor * step, np.int32) for step in range(8)]
            for handle, share in [(comm.allreduce_async(share), share) for share in shares]:
                assert (handle.wait() == 2 * share).all()

        both = [(comm, factor) for factor, some in ((3, comms), (5, others)) for comm in some]
        at_once([lambda comm=comm, factor=factor: work(comm, factor) for comm, factor in both])
        assert not calls
        monkeypatch.undo()
        for comm, _ in both:
            assert comm.stats.invalid == 0
            assert comm.stats.frames_received > 0


def test_a_rank_that_does_not_come(system: System) -> None:
    with two(system) as comms:
        at_once([comm.barrier for comm in comms])
        wait_until_free(system, comms[0])
        error = outcome(lambda: comms[0].allreduce(np.ones(300, np.float32), timeout=0.5))
        assert isinstance(error, p4reduce.P4ReduceTimeoutError)
        assert error.missing == (1,)


def test_a_rank_that_comes_late(system: System) -> None:
    with two(system) as comms:
        at_once([comm.barrier for comm in comms])
        wait_until_free(system, comms[0])
        calls = lock_of(system, comms[0]).calls

        def late() -> npt.NDArray[Any]:
            time.sleep(0.7)  # long enough for the timers of the other
            return comms[1].allreduce(np.full(900, 2, np.float32))

        sums = at_once([lambda: comms[0].allreduce(np.ones(900, np.float32)), late])
        assert all((one == 3).all() for one in sums)
        assert lock_of(system, comms[0]).calls > calls


@pytest.mark.parametrize("by_caller", [True, False], ids=["caller", "progress thread"])
def test_a_call_that_was_stopped_before_it_began(
    system: System, by_caller: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline has passed before its first frame. It does not blame the others at once.

    They may have given this rank up, which it has to hear first.
    """
    prepare = SlotMachine.prepare if by_caller else SlotMachine.submit
    woken_at = []

    def stopped(machine: SlotMachine, collective: Collective) -> int | None:
        time.sleep(1.1)  # as long as a loop that runs never takes
        woken_at.append(time.monotonic())
        return prepare(machine, collective)

    with two(system) as comms:
        at_once([comm.barrier for comm in comms])
        wait_until_free(system, comms[0])
        monkeypatch.setattr(SlotMachine, prepare.__name__, stopped)
        monkeypatch.setattr(engine, "GRACE", 0.3)
        ones = np.ones(900, np.float32)
        if by_caller:
            error = outcome(lambda: comms[0].allreduce(ones, timeout=0.1))
        else:
            error = outcome(lambda: comms[0].allreduce_async(ones, timeout=0.1).wait())
        assert isinstance(error, p4reduce.P4ReduceTimeoutError)
        assert error.missing == (1,)
        assert time.monotonic() > woken_at[0] + engine.GRACE


def test_ranks_that_call_different_things(system: System) -> None:
    """What is odd is left to the progress thread, with all that a caller has begun."""
    with two(system) as comms:
        at_once([comm.barrier for comm in comms])
        errors = at_once(
            [
                lambda comm=comm: outcome(lambda: comm.allreduce(np.ones(300 + comm.rank)))  # type: ignore[misc]
                for comm in comms
            ]
        )
        assert all(isinstance(error, p4reduce.MismatchError) for error in errors)


def test_an_exception_at_any_bytecode_of_a_caller(system: System, rng: np.random.Generator) -> None:
    share = np.full(700, 5, np.int32)

    def call(comm: Communicator) -> npt.NDArray[Any]:
        return comm.allreduce(share, timeout=DEADLINE)

    with two(system) as comms:
        at_once([lambda comm=comm: call(comm) for comm in comms])
        wait_until_free(system, comms[0])
        calls = lock_of(system, comms[0]).calls
        other = threading.Thread(target=call, args=(comms[1],), daemon=True)
        other.start()
        found = places(lambda: call(comms[0]))
        other.join(DEADLINE)
        assert lock_of(system, comms[0]).calls > calls
    found = [place for place in found if place.code is not call.__code__]
    for number in rng.choice(len(found), SAMPLE, replace=False):
        print(f"interrupted at {found[number]}")
        with two(system) as comms:
            at_once([lambda comm=comm: call(comm) for comm in comms])
            wait_until_free(system, comms[0])
            said: list[Any] = []
            other = threading.Thread(
                target=lambda: said.append(outcome(lambda: call(comms[1]))),  # noqa: B023
                daemon=True,
            )
            other.start()
            if not interrupted(lambda: call(comms[0]), found[number]):
                continue
            if comms[0].broken is None:
                call(comms[0])  # it had not begun, or an instruction of the call's wrapper
                later: Any = None
            else:
                later = outcome(lambda: call(comms[0]))
                assert isinstance(later, p4reduce.InterruptedCallError)
            other.join(2 * DEADLINE)
            assert not other.is_alive(), "the other rank hangs"
            if isinstance(said[0], p4reduce.P4ReduceError):
                assert isinstance(said[0], p4reduce.WorkerLostError), said[0]
                assert later is not None
            else:
                assert (said[0] == 10).all()


PROGRAM = """
import signal, sys, time
import numpy as np, p4reduce
controller, interface, job, what, timeout = sys.argv[1:]
comm = p4reduce.init(0, 2, controller, job, interface=interface, timeout=120)
comm.barrier()
time.sleep(0.1)  # the progress thread rests by now
def closes(*_): comm.close()  # waits for the other rank as long as the collective may take
def looks(*_): print("stats", comm.stats.collectives, flush=True)
if what == "closes": signal.signal(signal.SIGALRM, closes)
elif what == "looks": signal.signal(signal.SIGALRM, looks)
print("ready", flush=True)
if what != "interrupt": signal.setitimer(signal.ITIMER_REAL, 0.3)
begin = time.monotonic()
try:
    comm.allreduce(np.ones(300, np.float32), timeout=float(timeout))
except BaseException as error:
    print(type(error).__name__, round(time.monotonic() - begin, 1), flush=True)
comm.close()
"""


@pytest.mark.parametrize("what", ["closes", "looks", "interrupt"])
def test_signals_while_the_caller_runs_it(system: System, what: str) -> None:
    """A handler may close the communicator, look at it or raise; none of it waits for the sum."""
    job = system.new_job()
    timeout = 4 if what != "interrupt" else DEADLINE
    command = [sys.executable, "-c", PROGRAM, system.controller, system.interface(1), job, what]
    command.append(f"{timeout:g}")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program,
        system.init(1, 2, job) as comm,
    ):
        comm.barrier()
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        if what == "interrupt":
            time.sleep(0.1)
            program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=2 * DEADLINE)
    said = out.split()
    if what == "closes":
        assert said[0] in {"ClosedError", "P4ReduceTimeoutError"}
    elif what == "looks":
        assert said[:3] == ["stats", "1", "P4ReduceTimeoutError"]
    else:
        assert said[0] == "KeyboardInterrupt"
        assert float(said[1]) < timeout / 2  # not only when its own timeout is over


def test_a_caller_that_runs_longer_than_a_quiet_second(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread takes notice of what was run while it rested, before it continues by itself."""
    for name in ("QUIET", "QUIET_BY_UDP"):
        monkeypatch.setattr(f"p4reduce.session.port.{name}", 0.002)

    def work(comm: Communicator) -> int:
        comm.barrier()
        calls = lock_of(system, comm).calls
        for number in range(20):
            wait_until_free(system, comm)
            if comm.rank:
                time.sleep(0.03)  # the other one waits for it meanwhile, and its timers run out
            share = np.full(3000, number + comm.rank, np.int32)
            assert (comm.allreduce(share) == 2 * number + 1).all()
        return lock_of(system, comm).calls - calls

    assert sum(system.run(2, work)) > 0
