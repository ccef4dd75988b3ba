# SPDX-License-Identifier: Apache-2.0
"""One of several switches is killed: the ranks wait for it, and continue when it is back."""

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
def test_the_ranks_continue_when_it_is_back(
    switches: SeveralSwitches, lost: int, with_controller: bool, rng: np.random.Generator
) -> None:
    """Killed at a random moment, with several collectives in flight."""
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def disturb() -> None:
        time.sleep(float(rng.uniform(0.0, 0.2)))
        system = switches.systems[lost]
        system.kill_switch()
        if with_controller:
            system.kill_controller()
        system.start_switch()
        if with_controller:
            system.start_controller()
        wait_for(lambda: training.statistics.recoveries, "the ranks are back")
        assert system.count("round-completed")
        training.end()

    found = train(switches, training, disturb, switches=[0, 1])
    assert recoveries(switches, seed, training, found) == {1}


@pytest.mark.long
def test_both_are_lost_and_come_back(switches: SeveralSwitches, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.05)

    def disturb() -> None:
        for system in switches.systems[:2]:
            system.kill_switch()
        for system in switches.systems[:2]:
            time.sleep(0.5)
            system.start_switch()
        wait_for(lambda: training.statistics.recoveries >= 2, "the ranks are back on both")
        training.end()

    found = train(switches, training, disturb, switches=[0, 1])
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
def test_it_stays_away_and_the_deadline_says_so(switches: SeveralSwitches) -> None:
    together = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.barrier()
        together.wait()
        if comm.rank == 0:
            switches.systems[1].kill_switch()
        together.wait()
        error = outcome(lambda: comm.allreduce(ONES, name="late", timeout=1.5))
        together.wait()
        return error, outcome(lambda: comm.allreduce(ONES))

    for errors in switches.run(WORLD, work, switches=[0, 1]):
        for error in errors:
            assert isinstance(error, p4reduce.SwitchUnreachableError), error
            assert "'late'" in str(error)


def test_groups_and_urgent_calls_continue_as_well(switches: SeveralSwitches) -> None:
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
        switches.systems[0].start_switch()
        done.wait()

    options: dict[str, Any] = {"switches": [0, 1], "slots": 32, "urgent_slots": 8}
    found = beside(lambda: switches.run(WORLD, work, **options), kill)
    assert found == [(1, 1)] * WORLD


@pytest.mark.long
def test_a_rank_killed_with_the_switch_is_named(switches: SeveralSwitches) -> None:
    """The others learn of it, and do not wait for the switch."""
    done = threading.Barrier(WORLD, timeout=DEADLINE)

    def work(comm: p4reduce.Communicator) -> Any:
        comm.allreduce(ONES)
        done.wait()
        if comm.rank == 2:
            switches.systems[0].kill_switch()
            comm.__exit__(SystemExit, SystemExit(), None)  # its program ends
            return None
        return outcome(lambda: comm.allreduce(ONES))

    errors = switches.run(WORLD, work, switches=[0, 1])
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
