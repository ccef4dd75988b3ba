# SPDX-License-Identifier: Apache-2.0
"""The switch or the controller is killed and started again, and the ranks continue."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import p4reduce
import pytest
from cables import Cables
from fault_system import EMBEDDED, PATIENT_LEASE, FaultSystem, fault_system_with
from p4reduce.session.engine import Engine
from p4reduce.session.session import Session
from worker_system import DEADLINE, at_once, outcome, wait_for

T = TypeVar("T")

WORLD = 3
ONES = np.ones(3000, np.float32)

fault_system = fault_system_with(lambda: PATIENT_LEASE, "module")


class Training:
    """Several collectives in flight at each step, of several kinds, half of them in place.

    Args:
        seed: of what the ranks put in.
        steps: how many, unless `end` is called; rank 0 tells the others at each step whether
            it is the last.
        pause: seconds between two steps, so that a run is long enough to be disturbed.
    """

    def __init__(self, seed: int, steps: float = math.inf, pause: float = 0.0) -> None:
        self.seed = seed
        self.steps = steps
        self.pause = pause
        self.step = 0  # where rank 0 is
        self.statistics = p4reduce.Statistics()  # its own

    def end(self) -> None:
        """Continue for a few steps more. How many there were in all, `step` says in the end."""
        self.steps = self.step + 3

    def __call__(self, comm: p4reduce.Communicator) -> tuple[list[bytes], p4reduce.Statistics]:
        rng = np.random.default_rng((self.seed, comm.rank))
        results: list[bytes] = []
        for step in itertools.count():
            if comm.allreduce(np.int32(comm.rank == 0 and step >= self.steps)):
                return results, comm.stats
            floats = rng.standard_normal(20_000).astype(np.float32)
            floats[:5000] = 0
            integers = rng.integers(-1000, 1000, 700, np.int32)
            some = rng.standard_normal(3000)
            handles = [
                comm.allreduce_async(floats, out=floats),
                comm.allreduce_async(integers),
                comm.allreduce_async(some, op=p4reduce.MEAN, out=some),
                comm.allreduce_async(floats[:4000].copy(), precision="int16", seed=step),
                comm.broadcast_async(integers.copy(), root=step % comm.size),
            ]
            if step % 3 == 0:
                comm.barrier()
            results += [handle.wait().tobytes() for handle in handles]
            floats[:] = 0  # what a caller may do
            if comm.rank == 0:
                self.step = step + 1
                self.statistics = comm.stats
            time.sleep(self.pause)
        raise AssertionError


def undisturbed(system: FaultSystem, seed: int, steps: int) -> list[bytes]:
    results = [result for result, _ in system.run(WORLD, Training(seed, steps))]
    assert results[0] == results[1] == results[2]
    return results[0]


def disturbed(
    system: FaultSystem,
    training: Training,
    disturb: Callable[[], None],
    **options: Any,
) -> list[tuple[list[bytes], p4reduce.Statistics]]:
    """Run a training; `disturb` runs beside it, from its first step on."""

    def disturb_training() -> None:
        wait_for(lambda: training.step, "the training has begun")
        disturb()

    return beside(lambda: system.run(WORLD, training, **options), disturb_training)


def beside(work: Callable[[], T], disturb: Callable[[], None]) -> T:
    """Run two functions at once, `disturb` in this thread: it starts processes, which end with
    the thread that started them (see p4reduce_lab.processes.tether)."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        disturb()
    finally:
        thread.join(3 * DEADLINE)
        if errors:
            raise errors[0]  # also where `disturb` has waited without success because of it
    return results[0]


# -- The switch ----------------------------------------------------------------------------------


def test_results_are_the_same_as_if_the_switch_had_never_been_lost(
    broken: FaultSystem, rng: np.random.Generator
) -> None:
    """Killed at random moments, several times, with several collectives in flight."""
    seed, losses = int(rng.integers(1 << 30)), 2
    training = Training(seed, pause=0.02)

    def disturb() -> None:
        for _ in range(losses):
            before = training.step
            wait_for(lambda: training.step > before, "a further step")  # noqa: B023
            time.sleep(float(rng.uniform(0.0, 0.15)))
            broken.kill_switch()
            time.sleep(float(rng.uniform(0.0, 0.2)))
            broken.start_switch()
        training.end()

    outcomes = disturbed(broken, training, disturb)
    expected = undisturbed(broken, seed, training.step)
    for results, statistics in outcomes:
        assert results == expected
        assert 1 <= statistics.recoveries <= losses


def test_a_loss_between_collectives_is_repaired_as_well(broken: FaultSystem) -> None:
    done = threading.Barrier(WORLD + 1, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> int:
        comm.allreduce(ONES)
        done.wait()
        done.wait()
        assert (comm.allreduce(ONES) == WORLD).all()
        return comm.stats.recoveries

    def restart() -> None:
        done.wait()
        broken.kill_switch()
        broken.start_switch()
        done.wait()

    assert beside(lambda: broken.run(WORLD, work), restart) == [1] * WORLD


def test_a_switch_that_stays_away_is_named_at_the_deadline(broken: FaultSystem) -> None:
    together = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.barrier()
        together.wait()  # no rank is in the barrier when the switch is killed
        if comm.rank == 0:
            broken.kill_switch()
        together.wait()
        start = time.monotonic()
        error = outcome(lambda: comm.allreduce(ONES, name="late", timeout=1.5))
        assert time.monotonic() - start >= 1.5
        together.wait()  # who leaves is to blame as well
        return error, outcome(lambda: comm.allreduce(ONES))

    for errors in broken.run(WORLD, work):
        for error in errors:
            assert isinstance(error, p4reduce.SwitchUnreachableError), error
            assert "'late'" in str(error)
            assert "the switch was lost" in str(error)


def test_without_recovery_it_is_an_error_at_once(broken: FaultSystem) -> None:
    together = threading.Barrier(WORLD)  # no rank waits for the switch when it is killed

    def work(comm: p4reduce.Communicator) -> Any:
        comm.barrier()
        together.wait(DEADLINE)
        if comm.rank == 0:
            broken.kill_switch()
        return outcome(lambda: comm.allreduce(np.ones(1 << 20, np.float32)))

    for error in broken.run(WORLD, work, recover=False):
        assert isinstance(error, p4reduce.SwitchUnreachableError | p4reduce.JobEndedError), error


def test_children_come_through_the_loss_of_the_switch(broken: FaultSystem) -> None:
    """A job and its child by the same port: each is formed again, by one new connection.

    Urgent collectives are repeated in their slots as others are in theirs.
    """
    ones = np.ones(3000, np.float32)
    stop = threading.Event()
    summed = [threading.Event() for _ in range(2)]

    def work(comm: p4reduce.Communicator) -> tuple[int, int]:
        with comm.dup() as child:
            while True:
                assert (child.allreduce(ones) == 2).all()
                some = [comm.allreduce_async(ones, priority=one) for one in ("bulk", "urgent")]
                for handle in some:
                    assert (handle.wait() == 2).all()
                summed[comm.rank].set()
                if child.allreduce(np.array([int(stop.is_set())], np.int32))[0]:
                    return comm.stats.recoveries, child.stats.recoveries

    def restart() -> None:
        for one in summed:
            assert one.wait(DEADLINE)
        broken.kill_switch()
        broken.start_switch()
        stop.set()

    for recoveries in beside(lambda: broken.run(2, work, urgent_slots=8), restart):
        assert recoveries == (1, 1)


def test_who_has_all_results_stays_for_those_who_have_not(
    broken: FaultSystem, cables: Cables
) -> None:
    """Rank 0 hears nothing of the last result, and the switch is lost that had it."""
    deaf = threading.Event()
    closing = threading.Event()

    def work(comm: p4reduce.Communicator) -> None:
        comm.barrier()
        if comm.rank == 0:
            cables[0].deaf = True
            deaf.set()
        assert deaf.wait(DEADLINE)
        comm.barrier()  # a single round: its result is all that is missing
        closing.set()

    def restart() -> None:
        assert closing.wait(DEADLINE)
        broken.kill_switch()
        broken.start_switch()

    beside(lambda: broken.run(2, work), restart)


@EMBEDDED
def test_what_is_called_while_only_the_way_to_the_switch_is_broken_runs_afterwards(
    broken: FaultSystem, cables: Cables
) -> None:
    """The job is not formed again then, so nothing is repeated; and nothing may be forgotten."""

    def work(comm: p4reduce.Communicator) -> list[float]:
        comm.barrier()
        before = comm.allreduce_async(ONES)
        if comm.rank == 0:
            cable = cables[0]
            cable.broken = True
            cable.wake()
            wait_for(lambda: cables[0] is not cable, "there is another cable")
        handles = [comm.allreduce_async(ONES) for _ in range(3)]
        assert comm.stats.recoveries == 0
        return [float(handle.wait()[0]) for handle in (before, *handles)]

    assert broken.run(WORLD, work) == [[WORLD] * 4] * WORLD


# -- The controller ------------------------------------------------------------------------------


def test_running_collectives_do_not_notice_that_the_controller_is_restarted(
    broken: FaultSystem, rng: np.random.Generator
) -> None:
    seed, steps = int(rng.integers(1 << 30)), 12
    expected = undisturbed(broken, seed, steps)
    training = Training(seed, steps, pause=0.15)

    def restart() -> None:
        broken.kill_controller()
        broken.start_controller()

    for results, statistics in disturbed(broken, training, restart):
        assert results == expected
        assert statistics.recoveries == 0


@pytest.mark.long
def test_switch_and_controller_are_lost_together(
    broken: FaultSystem, rng: np.random.Generator
) -> None:
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.05)

    def restart() -> None:
        broken.kill_switch()
        broken.kill_controller()
        broken.start_switch()
        broken.start_controller()
        training.end()

    outcomes = disturbed(broken, training, restart)
    expected = undisturbed(broken, seed, training.step)
    for results, statistics in outcomes:
        assert results == expected
        assert statistics.recoveries == 1


# -- The ring ------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_ring_takes_over_until_the_switch_is_back(
    broken: FaultSystem, rng: np.random.Generator
) -> None:
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def restart() -> None:
        broken.kill_switch()
        wait_for(lambda: training.statistics.on_ring, "the ring has taken over")
        at = training.step
        wait_for(lambda: training.step > at + 3, "the training goes on without a switch")
        broken.start_switch()
        wait_for(lambda: not training.statistics.on_ring, "the ranks go back to the switch")
        training.end()

    options = {"fallback": "ring", "fallback_after": 0.3}
    outcomes = disturbed(broken, training, restart, **options)
    expected = undisturbed(broken, seed, training.step)
    for results, statistics in outcomes:
        assert results == expected
        assert 3 * 6 <= statistics.by_ring < statistics.collectives
        assert statistics.recoveries == 1
        assert not statistics.on_ring


@EMBEDDED
def test_ranks_on_the_ring_come_back_to_a_switch_that_never_failed(
    broken: FaultSystem, cables: Cables, rng: np.random.Generator
) -> None:
    """Switch and controller are out of reach for a while, and continue as they were."""
    training = Training(int(rng.integers(1 << 30)), pause=0.02)

    def cut() -> None:
        broken.kill_controller()  # the next one takes the job over as it runs
        cables.cut()
        wait_for(lambda: training.statistics.on_ring, "the ring has taken over")
        at = training.step
        wait_for(lambda: training.step > at + 1, "the training goes on without a switch")
        cables.away = False
        broken.start_controller()
        wait_for(lambda: not training.statistics.on_ring, "the ranks go back to the switch")
        training.end()

    options = {"fallback": "ring", "fallback_after": 0.3}
    outcomes = disturbed(broken, training, cut, **options)
    assert outcomes[0][0] == outcomes[1][0] == outcomes[2][0]
    for _, statistics in outcomes:
        assert statistics.by_ring > 0
        assert (statistics.recoveries, statistics.on_ring) == (1, False)
    assert outcomes[0][0] == undisturbed(broken, training.seed, training.step)


@EMBEDDED
def test_a_ring_is_refused_where_not_all_have_one(broken: FaultSystem) -> None:
    job = broken.new_job()

    def start(rank: int) -> Any:
        options = {"fallback": "ring"} if rank == 0 else {}
        return outcome(lambda: broken.init(rank, 2, job, **options))

    errors = at_once([lambda rank=rank: start(rank) for rank in range(2)])
    assert isinstance(errors[0], p4reduce.ConfigurationError)
    assert "rank 1 without" in str(errors[0])
    errors[1].close()


@EMBEDDED
def test_an_interrupted_call_waits_for_the_engine_with_which_a_recovery_ends(
    broken: FaultSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception comes during a recovery, which ends before the session is broken."""
    sessions: list[Session] = []
    aborted: list[Engine] = []
    submit, abort, error_of = Session.submit, Engine.abort, Session.broken

    def submit_and_note(session: Session, *arguments: Any, **options: Any) -> None:
        sessions.append(session)
        submit(session, *arguments, **options)

    def abort_and_note(engine: Engine, error: p4reduce.P4ReduceError, timeout: float) -> None:
        aborted.append(engine)
        abort(engine, error, timeout)

    def broken_later(session: Session) -> p4reduce.P4ReduceError | None:
        if threading.current_thread() is threading.main_thread() and session.is_recovering:
            broken.start_switch()
            wait_for(lambda: not session.is_recovering, "the recovery has ended")
        return error_of.__get__(session)

    monkeypatch.setattr(Session, "submit", submit_and_note)
    monkeypatch.setattr(Engine, "abort", abort_and_note)
    job = broken.new_job()
    comms = at_once([lambda rank=rank: broken.init(rank, 2, job) for rank in range(2)])
    at_once([comm.barrier for comm in comms])
    session = next(one for one in sessions if one.rank == 0)
    broken.kill_switch()
    wait_for(lambda: session.is_recovering, "the loss is known")
    monkeypatch.setattr(Session, "broken", property(broken_later))
    session.on_interrupted(p4reduce.InterruptedCallError("an exception left a call"))
    assert len(aborted) == 1
    for comm in comms:
        comm.close()


@EMBEDDED
def test_arguments_of_the_fallback_are_checked(broken: FaultSystem) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"fallback": "tree"}, "'tree'"),
        ({"fallback": "ring", "recover": False}, "recover=True"),
        ({"fallback": "ring", "fallback_after": -1.0}, "-1"),
        ({"fallback": "ring", "ring_address": "a:b"}, "'a:b'"),
    ]
    for options, text in wrong:
        with pytest.raises(ValueError, match=text):
            broken.init(0, 1, broken.new_job(), **options)
