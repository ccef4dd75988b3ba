# SPDX-License-Identifier: Apache-2.0
"""One of several switches is killed, for good or for a while, and the ranks continue."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import p4reduce
import pytest
from several_switches import SeveralSwitches
from test_recovery import Training, beside
from worker_system import DEADLINE, outcome, wait_for

WORLD = 3
ONES = np.ones(60_000, np.float32)


def undisturbed(switches: SeveralSwitches, seed: int, steps: int) -> list[bytes]:
    results = [result for result, _ in switches.run(WORLD, Training(seed, steps), switches=[0])]
    assert results[0] == results[1] == results[2]
    return results[0]


def recoveries(
    switches: SeveralSwitches, seed: int, training: Training, found: list[Any]
) -> set[int]:
    """How many each rank had, whose results are those of an undisturbed training."""
    switches.repair()
    expected = undisturbed(switches, seed, training.step)
    assert all(results == expected for results, _ in found)
    return {statistics.recoveries for _, statistics in found}


def train(there: SeveralSwitches, training: Training, disturb: Any, **options: Any) -> Any:
    """Run a training; `disturb` runs beside it, from its first step on."""

    def disturb_training() -> None:
        wait_for(lambda: training.step, "the training has begun")
        disturb()

    return beside(lambda: there.run(WORLD, training, **options), disturb_training)


@pytest.mark.parametrize(
    ("lost", "with_controller"),
    [
        pytest.param(0, False, id="first"),
        pytest.param(1, True, id="second-and-its-controller"),
        pytest.param(1, False, id="second", marks=pytest.mark.long),
        pytest.param(0, True, id="first-and-its-controller", marks=pytest.mark.long),
    ],
)
def test_the_ranks_go_on_with_the_switch_that_is_left(
    switches: SeveralSwitches, lost: int, with_controller: bool, rng: np.random.Generator
) -> None:
    """Killed for good at a random moment, with several collectives in flight."""
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def disturb() -> None:
        time.sleep(float(rng.uniform(0.0, 0.2)))
        switches.systems[lost].kill_switch()
        if with_controller:
            switches.systems[lost].kill_controller()
        training.end()

    options: dict[str, Any] = {"switches": [0, 1], "fallback_after": 0.3}
    found = train(switches, training, disturb, **options)
    assert recoveries(switches, seed, training, found) == {1}


@pytest.mark.long
def test_a_switch_that_comes_back_in_time_is_gone_on_with(
    switches: SeveralSwitches, rng: np.random.Generator
) -> None:
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def disturb() -> None:
        switches.systems[1].kill_switch()
        switches.systems[1].start_switch()
        wait_for(lambda: training.statistics.recoveries, "the ranks are back")
        assert switches.systems[1].count("round-completed")
        training.end()

    options: dict[str, Any] = {"switches": [0, 1], "fallback_after": DEADLINE}
    found = train(switches, training, disturb, **options)
    expected = undisturbed(switches, seed, training.step)
    for results, statistics in found:
        assert results == expected
        assert statistics.recoveries == 1


@pytest.mark.long
def test_from_switch_to_switch(three: SeveralSwitches, rng: np.random.Generator) -> None:
    """Of three switches two are lost one after the other, then the first comes back and the
    last one is lost: all that there was on three goes by the one that came back."""
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)
    systems = three.systems

    def recovered(times: int) -> None:
        wait_for(lambda: training.statistics.recoveries >= times, f"{times} moves")

    def disturb() -> None:
        systems[0].kill_switch()
        recovered(1)
        systems[1].kill_switch()
        recovered(3)  # there are two jobs on it
        systems[0].start_switch()
        systems[2].kill_switch()
        recovered(6)
        training.end()

    found = train(three, training, disturb, switches=[0, 1, 2], fallback_after=0.3)
    three.repair()
    expected = undisturbed(three, seed, training.step)
    for results, statistics in found:
        assert results == expected
        assert statistics.recoveries >= 6


@pytest.mark.long
def test_both_lost_and_only_the_other_one_back(
    switches: SeveralSwitches, rng: np.random.Generator
) -> None:
    """What cannot go anywhere waits for its own switch; what has none goes there."""
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.05)

    def disturb() -> None:
        for system in switches.systems[:2]:
            system.kill_switch()
        time.sleep(0.5)
        switches.systems[1].start_switch()
        training.end()

    options: dict[str, Any] = {"switches": [0, 1], "fallback_after": 0.3}
    found = train(switches, training, disturb, **options)
    assert recoveries(switches, seed, training, found) == {2}


@pytest.mark.long
def test_with_a_ring_it_takes_the_part_of_the_lost_switch(
    switches: SeveralSwitches, rng: np.random.Generator
) -> None:
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def disturb() -> None:
        switches.systems[1].kill_switch()
        training.end()

    options: dict[str, Any] = {"switches": [0, 1], "fallback": "ring", "fallback_after": 0.3}
    found = train(switches, training, disturb, **options)
    switches.repair()
    expected = undisturbed(switches, seed, training.step)
    for results, statistics in found:
        assert results == expected
        assert statistics.by_ring
        assert not statistics.recoveries


@pytest.mark.long
def test_nobody_comes_back_and_the_deadline_says_so(switches: SeveralSwitches) -> None:
    together = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.barrier()
        together.wait()
        if comm.rank == 0:
            for system in switches.systems[:2]:
                system.kill_switch()
        together.wait()
        error = outcome(lambda: comm.allreduce(ONES, name="late", timeout=1.5))
        together.wait()
        return error, outcome(lambda: comm.allreduce(ONES))

    for errors in switches.run(WORLD, work, switches=[0, 1], fallback_after=0.3):
        for error in errors:
            assert isinstance(error, p4reduce.SwitchUnreachableError), error
            assert "'late'" in str(error)


def test_groups_and_urgent_calls_move_as_well(switches: SeveralSwitches) -> None:
    done = threading.Barrier(WORLD + 1, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        with comm.dup() as twin:
            for one in (comm, twin):
                one.allreduce(ONES)
            done.wait()
            done.wait()
            for one in (comm, twin):
                urgent = one.allreduce_async(ONES, priority="urgent")
                assert (one.allreduce(ONES) == WORLD).all()
                assert (urgent.wait() == WORLD).all()
            return comm.stats.recoveries, twin.stats.recoveries

    def kill() -> None:
        done.wait()
        switches.systems[0].kill_switch()
        done.wait()

    options: dict[str, Any] = {"switches": [0, 1], "fallback_after": 0.3}
    options |= {"slots": 32, "urgent_slots": 8}
    found = beside(lambda: switches.run(WORLD, work, **options), kill)
    assert found == [(1, 1)] * WORLD


@pytest.mark.long
def test_after_a_move_groups_and_jobs_formed_anew_know_all_switches(
    switches: SeveralSwitches,
) -> None:
    """What begins where another switch is done without goes there when the one it is on is lost."""
    step = threading.Barrier(WORLD + 1, timeout=DEADLINE)
    systems = switches.systems

    def work(comm: p4reduce.Communicator) -> Any:
        step.wait()
        step.wait()
        assert (comm.allreduce(ONES) == WORLD).all()  # by the second switch alone
        if comm.rank == 2:
            comm.close()
            step.wait()
            return None
        assert isinstance(outcome(lambda: comm.allreduce(ONES)), p4reduce.WorkerLostError)
        with comm.reform() as new, new.dup() as twin:
            assert (twin.allreduce(ONES) == 2).all()
            step.wait()
            assert (new.allreduce(ONES) == 2).all()
            assert (twin.allreduce(ONES) == 2).all()
            return new.stats.recoveries, twin.stats.recoveries

    def disturb() -> None:
        step.wait()
        systems[0].kill_switch()
        step.wait()
        step.wait()
        systems[1].kill_switch()
        systems[0].start_switch()

    options: dict[str, Any] = {"switches": [0, 1], "fallback_after": 0.3}
    found = beside(lambda: switches.run(WORLD, work, **options), disturb)
    assert found == [(2, 2), (2, 2), None]  # both parts of each


@pytest.mark.long
def test_a_rank_killed_with_the_switch_is_named(switches: SeveralSwitches) -> None:
    """It does not come to the next switch: the others learn of it there, and do not wait."""
    done = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.allreduce(ONES)
        done.wait()
        if comm.rank == 2:
            switches.systems[0].kill_switch()
            comm.__exit__(SystemExit, SystemExit(), None)  # its program ends
            return None
        return outcome(lambda: comm.allreduce(ONES))

    errors = switches.run(WORLD, work, switches=[0, 1], fallback_after=0.3)
    for error in errors[:2]:
        assert isinstance(error, p4reduce.WorkerLostError), error
        assert error.ranks == (2,)


@pytest.mark.long
def test_without_recovery_it_is_an_error_at_once(switches: SeveralSwitches) -> None:
    together = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.barrier()
        together.wait()
        if comm.rank == 0:
            switches.systems[1].kill_switch()
        return outcome(lambda: [comm.allreduce(ONES) for _ in range(1000)])

    for error in switches.run(WORLD, work, switches=[0, 1], recover=False):
        assert isinstance(error, p4reduce.SwitchUnreachableError | p4reduce.JobEndedError), error
