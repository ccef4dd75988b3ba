# SPDX-License-Identifier: Apache-2.0
"""Slots are exhausted and freed over and over: none is lost, and nothing piles up."""

from __future__ import annotations

import os
import random

import grpc
import pytest
from controller_harness import RunningController, SwitchProcess, eventually
from jobs_world import LEASE, World, attach, join, leave, make_jobs, refused
from p4reduce.control.client import ControlError
from p4reduce_controller.jobs.job import SLOTS, Job
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.roster import PAST_JOBS
from p4reduce_controller.topology.switches import ONLY

CYCLES = 1000


def fill(jobs: Jobs, rng: random.Random) -> list[Job]:
    """Make jobs of random sizes until there is no room; half of them run."""
    made = []
    while True:
        size, slots = rng.randint(1, 2), rng.choice((200, 256, 500, 1000))
        try:
            for rank in range(size):
                job, member = join(jobs, f"job{len(made)}", rank, size, slots)
                attach(jobs, job, member)
        except JobRefusedError as error:
            why = error
            break
        if rng.random() < 0.5:
            jobs.on_configured(job)
        made.append(job)
    assert why.cause is Cause.EXHAUSTED
    return made


def end(jobs: Jobs, world: World, job: Job, rng: random.Random) -> None:
    """In one of the ways in which a job ends."""
    match rng.randrange(3):
        case 0 if not job.over:
            jobs.delete(job.name)
        case 1:
            world.now += LEASE
            jobs.expire()
    for member in job.active:  # also of a job that failed: they might form it again
        leave(jobs, job, member.rank)


def test_a_thousand_times() -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    rng, world = random.Random(seed), World()
    jobs = make_jobs(world)
    for cycle in range(CYCLES):
        for job in fill(jobs, rng):
            end(jobs, world, job, rng)
        while world.to_remove:
            jobs.release(world.to_remove.pop(0))
        assert jobs.holdings.slots_free(ONLY) == SLOTS, f"in cycle {cycle}"
        assert len(jobs.all) <= PAST_JOBS + 16
        world.kinds.clear()
        world.texts.clear()
    # All of everything is there for the last one: slots in a row, replica ids, groups, addresses.
    join(jobs, "last", 0, 64, SLOTS)
    refused(Cause.EXHAUSTED, lambda: join(jobs, "none", 0, 1, 1))


def test_over_and_over_on_a_switch(controller: RunningController, switch: SwitchProcess) -> None:
    """Ten times, or $CYCLES: `make soak` does it a thousand times."""
    for cycle in range(int(os.environ.get("CYCLES") or 10)):
        ranks = controller.running(switch, 2, job="large", slots=SLOTS)
        with pytest.raises(ControlError) as caught:
            controller.call("CreateJob", name=f"none{cycle}", world_size=1, slots=1)
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        for rank in ranks:
            rank.leave()
        eventually(lambda: controller.call("GetSwitch").slots_free == SLOTS, "they are free again")
    for table in ("admission", "delivery", "bridge"):
        assert controller.table(table) == []
