# SPDX-License-Identifier: Apache-2.0
"""What ranks say of the switch's answers."""

from __future__ import annotations

import pytest
from jobs_world import LEASE, World, attach, join, leave, make_jobs, running
from p4reduce_controller.jobs.job import Job, MemberState
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.refusals import Cause


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def jobs(world: World) -> Jobs:
    return make_jobs(world)


def beat(jobs: Jobs, job: Job, rank: int, **said: float) -> None:
    jobs.heartbeat(job.incarnation, rank, job.members[rank].nonce, **said)  # type: ignore[arg-type]


def test_a_rank_that_alone_hears_nothing_is_lost(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    beat(jobs, job, 0, heard=1.0)
    beat(jobs, job, 1, unanswered=LEASE - 1)
    assert job.state is JobState.RUNNING
    world.now += 2.0
    beat(jobs, job, 1, unanswered=LEASE + 1)
    assert (job.state, job.cause) == (JobState.FAILED, Cause.RANK_LOST)
    assert job.ranks(MemberState.LOST) == [1]
    assert job.reason == (
        "rank 1 (host host1, pid 101) was lost: it reaches the controller, "
        "but has heard nothing from the switch for 11 s"
    )


def test_where_nobody_hears_anything_it_is_the_switch(jobs: Jobs) -> None:
    job = running(jobs)
    beat(jobs, job, 0, unanswered=5 * LEASE, heard=6 * LEASE)
    beat(jobs, job, 2)  # it has not asked for anything
    beat(jobs, job, 1, unanswered=5 * LEASE)
    assert job.state is JobState.RUNNING


def test_when_the_switch_falls_silent_nobody_is_blamed_for_the_last_answer(
    jobs: Jobs, world: World
) -> None:
    job = running(jobs)
    for eighths in range(1, 13):
        world.now += LEASE / 8
        silent = eighths * LEASE / 8
        beat(jobs, job, 0, unanswered=silent, heard=silent + 0.1)
        for rank in (1, 2):
            beat(jobs, job, rank, unanswered=silent - 0.3, heard=silent - 0.2)
    assert job.state is JobState.RUNNING


def test_an_answer_before_the_silence_proves_nothing(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    beat(jobs, job, 0, heard=1.0)
    for _ in range(5):
        world.now += LEASE / 2
        beat(jobs, job, 1, unanswered=LEASE / 4)
        for rank in (0, 2):
            beat(jobs, job, rank)
    # Since rank 1 began to ask, nobody has told of an answer.
    world.now += LEASE / 2
    beat(jobs, job, 1, unanswered=LEASE)
    assert job.state is JobState.RUNNING


def test_a_silence_that_is_over_counts_no_more(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    beat(jobs, job, 0, unanswered=2 * LEASE)
    assert job.state is JobState.RUNNING  # it may be a machine that stood still
    world.now += LEASE / 20
    for rank in (0, 1, 2):
        beat(jobs, job, rank, heard=0.01)  # the switch answers
    world.now += 50 * LEASE
    beat(jobs, job, 0, unanswered=2 * LEASE)
    assert job.state is JobState.RUNNING  # the first that is heard of the next silence
    world.now += LEASE / 5
    beat(jobs, job, 0, unanswered=2.2 * LEASE)
    assert job.state is JobState.FAILED


@pytest.mark.parametrize("nonsense", [float("nan"), -1e308, float("inf")])
def test_nonsense_loses_nobody_else(jobs: Jobs, nonsense: float) -> None:
    job = running(jobs)
    beat(jobs, job, 1, unanswered=nonsense, heard=nonsense)
    for rank in (0, 2):
        beat(jobs, job, rank, unanswered=LEASE / 2)
    assert set(job.ranks(MemberState.LOST)) <= {1}


def test_how_far_all_are(jobs: Jobs) -> None:
    job = running(jobs)
    assert job.completed_by_all == 0
    for rank, completed in ((0, 7), (1, 5), (2, 9), (1, 4)):
        beat(jobs, job, rank, completed=completed)
    assert job.completed_by_all == 5
    leave(jobs, job, 1)
    assert job.completed_by_all == 7


def test_who_comes_later_counts_as_well(jobs: Jobs) -> None:
    job, first = join(jobs, "train", 0, 2)
    attach(jobs, job, first)
    beat(jobs, job, 0)
    assert job.completed_by_all == 0
    attach(jobs, job, join(jobs, "train", 1, 2)[1])
    jobs.on_configured(job)
    beat(jobs, job, 0, completed=5)
    assert job.completed_by_all == 0


def test_each_incarnation_has_a_secret_of_its_own(jobs: Jobs) -> None:
    first, _ = join(jobs, "a", 0, 1)
    second, _ = join(jobs, "b", 0, 1)
    assert len(first.secret) == len(second.secret) == 32
    assert first.secret != second.secret


def test_a_switch_that_answers_nobody_is_lost(jobs: Jobs, world: World) -> None:
    """Whatever the cause: no job waits for its deadline in silence."""
    job = running(jobs)
    beat(jobs, job, 0, unanswered=1.6 * LEASE, heard=1.7 * LEASE)
    assert job.state is JobState.RUNNING  # the process may have stood still
    world.now += LEASE / 8
    beat(jobs, job, 1, heard=1.5 * LEASE)
    beat(jobs, job, 0, unanswered=1.725 * LEASE, heard=1.825 * LEASE)
    assert (job.state, job.cause) == (JobState.FAILED, Cause.SWITCH_LOST)
    assert job.reason == (
        "the switch has answered nothing for 17.2 s, though rank 0 (host host0, pid 100) asked "
        "again and again, and no other rank had an answer"
    )


def test_an_answer_to_anybody_shows_that_the_switch_is_there(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    for _ in range(4):
        beat(jobs, job, 1, heard=LEASE * 1.2)
        beat(jobs, job, 0, unanswered=2 * LEASE)
        world.now += LEASE / 8
    assert job.state is JobState.RUNNING


def test_it_is_looked_whether_the_switch_has_the_job(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    beat(jobs, job, 0, unanswered=LEASE / 4)
    assert world.looks == []
    for _ in range(4):  # not at each heartbeat
        beat(jobs, job, 0, unanswered=LEASE / 2)
    assert world.looks == [job]
    jobs.on_looked(job, "")
    assert job.state is JobState.RUNNING
    jobs.on_looked(job, "admission {port: 1}")
    assert (job.state, job.cause) == (JobState.FAILED, Cause.SWITCH_LOST)
    assert "has lost entries of the job: admission {port: 1}" in job.reason
