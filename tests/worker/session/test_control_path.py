# SPDX-License-Identifier: Apache-2.0
"""A controller that hangs or cannot be reached, while the switch is well: nobody may notice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import p4reduce
import pytest
from fault_system import EMBEDDED, FaultSystem
from p4reduce.control import control_pb2 as pb
from p4reduce_controller.jobs.job import SLOTS
from p4reduce_controller.jobs.leases import LOST_AFTER
from relay import Relay
from test_recovery import beside
from test_reform import ONES, Process, sum_up
from worker_system import DEADLINE, at_once, outcome, silence, wait_for

WORLD = 3


@pytest.fixture
def relay(broken: FaultSystem) -> Iterator[Relay]:
    with broken.relay() as relay:
        yield relay


class Steps:
    """All-reduces, whose results are checked, until the test has what it wants."""

    def __init__(self) -> None:
        self.done = False
        self.step = 0  # where rank 0 is

    def __call__(self, comm: p4reduce.Communicator) -> p4reduce.Statistics:
        step = 0
        while not comm.allreduce(np.int32(comm.rank == 0 and self.done)):
            step += 1
            expected = step * comm.size + sum(range(comm.size))
            assert (comm.allreduce(ONES * (step + comm.rank)) == expected).all()
            if comm.rank == 0:
                self.step = step
            time.sleep(0.005)  # other tests need the cores
        return comm.stats


def undisturbed_by(
    system: FaultSystem,
    disturbance: AbstractContextManager[object],
    world: int = WORLD,
    **options: str,
) -> None:
    """Reduce during a disturbance of several leases, and some time after it."""
    steps = Steps()

    def disturb_steps() -> None:
        try:
            wait_for(lambda: steps.step > 3, "the steps have begun")
            before = steps.step
            with disturbance:
                time.sleep(3 * system.lease)
                wait_for(lambda: steps.step > before + 3, "they go on meanwhile")
            time.sleep(1.5 * system.lease)  # whoever is taken for lost is told so by then
        finally:
            steps.done = True

    for statistics in beside(lambda: system.run(world, steps, **options), disturb_steps):
        assert statistics.recoveries == 0


@pytest.mark.long
@pytest.mark.parametrize("world", [WORLD, 1])
def test_collectives_do_not_notice_a_controller_that_hangs(broken: FaultSystem, world: int) -> None:
    undisturbed_by(broken, broken.hanging_controller(), world)


@EMBEDDED
def test_collectives_do_not_notice_that_nobody_reaches_the_controller(
    broken: FaultSystem, relay: Relay
) -> None:
    @contextmanager
    def cut() -> Iterator[None]:
        relay.cut()
        yield
        relay.mend()

    undisturbed_by(broken, cut(), controller=relay.address)


@EMBEDDED
def test_ranks_that_were_all_taken_for_lost_can_go_on(broken: FaultSystem, relay: Relay) -> None:
    job = broken.new_job()
    where = {"controller": relay.address}
    comms = at_once([lambda rank=rank: broken.init(rank, 2, job, **where) for rank in range(2)])
    again: list[p4reduce.Communicator] = []
    try:
        at_once([comm.barrier for comm in comms])
        relay.cut()
        wait_for(lambda: broken.job(job).state == pb.FAILED, "the job is over")
        relay.mend()
        wait_for(lambda: all(comm.broken for comm in comms), "they were told")
        for comm in comms:
            error = outcome(comm.barrier)
            assert isinstance(error, p4reduce.WorkerLostError), error
            assert error.ranks == (0, 1)
            assert "all ranks were declared lost" in str(error)
        again = at_once([lambda comm=comm: comm.reform() for comm in comms])
        assert [(comm.rank, comm.size) for comm in again] == [(0, 2), (1, 2)]
        sum_up(again)
    finally:
        at_once([comm.close for comm in again or comms])


@EMBEDDED
def test_who_alone_cannot_reach_the_controller_is_lost_and_cannot_go_on(
    broken: FaultSystem, relay: Relay
) -> None:
    job = broken.new_job()
    where = [{}, {}, {"controller": relay.address}]
    comms = at_once(
        [lambda rank=rank: broken.init(rank, 3, job, **where[rank]) for rank in range(3)]
    )
    try:
        at_once([comm.barrier for comm in comms])
        relay.cut()
        errors = at_once([lambda comm=comm: outcome(comm.barrier) for comm in comms[:2]])
        for error in errors:
            assert isinstance(error, p4reduce.WorkerLostError), error
            assert error.ranks == (2,)
            silent = silence(error)
            assert silent is not None
            assert silent >= LOST_AFTER * broken.lease  # and not before
        comms += at_once([comm.reform for comm in comms[:2]])
        relay.mend()
        assert isinstance(outcome(comms[2].barrier), p4reduce.WorkerLostError)
        start = time.monotonic()
        with pytest.raises(p4reduce.AdmissionError, match="was declared lost"):
            comms[2].reform(timeout=DEADLINE)
        assert time.monotonic() - start < DEADLINE / 2
    finally:
        at_once([comm.close for comm in comms])


@EMBEDDED
def test_a_job_whose_ranks_were_all_killed_ends(broken: FaultSystem) -> None:
    job = broken.new_job()
    wait_for(lambda: broken.slots_free() == SLOTS, "other jobs are gone")
    ranks = [Process(broken, job, rank, 2) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.line() == "joined"
        assert broken.slots_free() < SLOTS
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()
    wait_for(lambda: broken.slots_free() == SLOTS, "its slots are free")
