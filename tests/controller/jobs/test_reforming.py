# SPDX-License-Identifier: Apache-2.0
"""Jobs that failed and continue, without a switch and without a network."""

from __future__ import annotations

import pytest
from jobs_world import (
    LEASE,
    World,
    attach,
    desert,
    join,
    leave,
    make_jobs,
    pass_time,
    refused,
    running,
)
from p4reduce_controller.jobs.job import SLOTS, Job, JobMember, MemberState, Reformation
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.reforming import ReformedPlace, Reforming
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import ONLY
from p4reduce_controller.values.token_hash import TokenHash


class Survivors:
    """The ranks of one job as they ask to continue."""

    def __init__(self, world: World, jobs: Jobs) -> None:
        self.world = world
        self.jobs = jobs
        self.asked: list[Reformation] = []
        self.reforming = Reforming(jobs, world)

    @property
    def settled(self) -> list[Reformation]:
        return [each for each in dict.fromkeys(self.asked) if each.settled.is_set()]

    def lose(self, job: Job, *lost: int) -> None:
        """Let the leases of those ranks run out."""
        others = [member.rank for member in job.active if member.rank not in lost]
        pass_time(self.jobs, self.world, job, 1, *others)
        assert job.state is JobState.FAILED

    def ask(
        self, job: Job, rank: int, world_size: int = 0, completed: int = 0
    ) -> tuple[Reformation, JobMember]:
        member = job.members[rank]
        address = f"host{rank}:7{rank}"
        self.asked.append(self.reforming.ask(job, member, world_size, completed, address))
        return self.asked[-1], member

    def advance(self) -> None:
        """Let everything happen that can."""
        for _ in range(3):
            self.reforming.advance()
            while self.world.to_remove:
                self.jobs.release(self.world.to_remove.pop(0))

    def reform(self, job: Job, world_size: int = 0) -> dict[int, ReformedPlace]:
        """All ask, and all are answered."""
        asked = [self.ask(job, member.rank, world_size) for member in job.active]
        self.advance()
        for each in asked:
            self.reforming.withdraw(*each)
        return {member.rank: self.reforming.place(each, member) for each, member in asked}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def jobs(world: World) -> Jobs:
    return make_jobs(world)


@pytest.fixture
def survivors(world: World, jobs: Jobs) -> Survivors:
    return Survivors(world, jobs)


def ranks(places: dict[int, ReformedPlace]) -> dict[int, int]:
    return {old: place.member.rank for old, place in places.items()}


def test_survivors_go_on_in_a_smaller_job(survivors: Survivors, jobs: Jobs, world: World) -> None:
    job = running(jobs, size=4, slots=10)
    survivors.lose(job, 1)
    asked = [survivors.ask(job, rank, completed=completed) for rank, completed in ((3, 7), (0, 9))]
    survivors.advance()
    assert survivors.settled == []  # rank 2 has not asked
    asked.append(survivors.ask(job, 2, completed=8))
    survivors.advance()
    assert len(survivors.settled) == 1
    places = {member.rank: survivors.reforming.place(each, member) for each, member in asked}
    assert ranks(places) == {0: 0, 2: 1, 3: 2}
    assert {place.resume_from for place in places.values()} == {7}
    new = jobs.named("train")
    assert (new.world_size, len(new.root.slots), new.state) == (3, 10, JobState.FORMING)
    assert new.incarnation != job.incarnation
    assert [member.ring_address for member in new.active] == ["host0:70", "host2:72", "host3:73"]
    assert [member.host for member in new.active] == ["host0", "host2", "host3"]
    assert new.members[0].nonce != job.members[0].nonce
    assert job.ranks(MemberState.LEFT) == [0, 2, 3]
    assert jobs.holdings.slots_free(ONLY) == SLOTS - 10
    for member in new.active:
        attach(jobs, new, member)
    jobs.on_configured(new)
    assert new.state is JobState.RUNNING
    assert "job-reformed" in world.kinds


def test_the_token_is_kept(survivors: Survivors, jobs: Jobs) -> None:
    """And the number of urgent slots."""
    job = running(jobs, size=3)
    job.token, job.urgent_slots = TokenHash.of("correct-horse-battery"), [3, 1]
    survivors.lose(job, 2)
    survivors.reform(job)
    assert jobs.named("train") is not job
    assert jobs.named("train").token == job.token
    assert jobs.named("train").urgent_slots == [3, 1]


def test_ranks_are_kept_where_the_world_keeps_its_size(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=4)
    survivors.lose(job, 1)
    refused(Cause.WRONG_STATE, lambda: join(jobs, "train", 1, 4))  # a replacement, early
    assert ranks(survivors.reform(job, 4)) == {0: 0, 2: 2, 3: 3}
    new, replacement = join(jobs, "train", 1, 4)
    assert new is jobs.named("train")
    for member in [*new.active]:
        attach(jobs, new, member)
    assert new.configuring
    refused(Cause.TAKEN, lambda: join(jobs, "train", 2, 4))
    assert replacement.rank == 1


@pytest.mark.parametrize(
    ("size", "expected"),
    [(3, {0: 0, 2: 1, 3: 2}), (6, {0: 0, 2: 2, 3: 3}), (0, {0: 0, 2: 1, 3: 2})],
)
def test_other_sizes(survivors: Survivors, jobs: Jobs, size: int, expected: dict[int, int]) -> None:
    job = running(jobs, size=4)
    survivors.lose(job, 1)
    assert ranks(survivors.reform(job, size)) == expected
    assert jobs.named("train").world_size == (size or 3)


def test_a_world_too_small(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=4)
    survivors.lose(job, 1)
    message = refused(Cause.INVALID, lambda: survivors.reform(job, 2))
    assert message == "world size 2 has no room for all of ranks 0, 2-3"
    refused(Cause.INVALID, lambda: survivors.ask(job, 0, 65))
    assert ranks(survivors.reform(job)) == {0: 0, 2: 1, 3: 2}  # asking again helps


def test_all_have_to_want_the_same(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    reformation, member = survivors.ask(job, 0, 3)
    message = refused(Cause.INVALID, lambda: survivors.ask(job, 2, 0))
    assert message == (
        "world size 0 does not fit what rank 0 (host host0, pid 100) asked for, which is 3"
    )
    survivors.reforming.withdraw(reformation, member)
    survivors.reform(job, 0)


def test_whose_lease_runs_out_is_waited_for_no_longer(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    reformation, member = survivors.ask(job, 2)
    survivors.advance()
    assert survivors.reforming.waits_for(reformation) == (
        "rank 0 (host host0, pid 100) has not asked for it"
    )
    world.now += LEASE
    jobs.expire()  # rank 2 waits, so it needs no heartbeat
    survivors.advance()
    place = survivors.reforming.place(reformation, member)
    assert (place.job.world_size, place.member.rank) == (1, 0)
    late = refused(Cause.OUT, lambda: survivors.ask(job, 0))
    assert late.startswith("rank 0 (host host0, pid 100) was declared lost")


def test_where_all_are_lost_any_of_them_may_go_on(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=3)
    leave(jobs, job, 1)
    desert(jobs, world)
    survivors.advance()
    assert (job.ranks(MemberState.LOST), jobs.holdings.slots_free(ONLY)) == ([0, 2], SLOTS)
    asked = survivors.ask(job, 0)
    survivors.advance()
    assert not asked[0].settled.is_set()
    pass_time(jobs, world, job, 2, 2)  # it is heard again, so it is waited for
    assert ranks(survivors.reform(job)) == {0: 0, 2: 1}
    assert "has left" in refused(Cause.OUT, lambda: survivors.ask(job, 1))


def test_where_all_are_lost_who_stays_away_is_not_waited_for(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=3)
    desert(jobs, world)
    asked = survivors.ask(job, 2)
    pass_time(jobs, world, job, 1)
    survivors.advance()
    assert survivors.reforming.place(*asked).job.world_size == 1
    assert "declared lost" in refused(Cause.OUT, lambda: survivors.ask(job, 0))


def test_where_all_are_lost_the_name_may_have_gone_to_others(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=2)
    desert(jobs, world)
    survivors.advance()
    running(jobs, size=2)
    assert "declared lost" in refused(Cause.OUT, lambda: survivors.ask(job, 0))


def test_who_leaves_is_waited_for_no_longer(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    reformation, member = survivors.ask(job, 2)
    leave(jobs, job, 0)
    survivors.advance()
    assert survivors.reforming.place(reformation, member).job.world_size == 1
    assert "has left" in refused(Cause.OUT, lambda: survivors.ask(job, 0))


def test_who_leaves_while_it_asks_gets_no_place(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    gone, stays = survivors.ask(job, 0), survivors.ask(job, 2)
    leave(jobs, job, 0)
    survivors.advance()
    assert survivors.reforming.place(*stays).job.world_size == 1
    assert "has left" in refused(Cause.OUT, lambda: survivors.reforming.place(*gone))


def test_to_ask_twice_is_to_ask_once(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=2)
    survivors.lose(job, 1)
    first = survivors.ask(job, 0)
    again = survivors.ask(job, 0)  # the client's connection broke, and nobody knows yet
    survivors.reforming.withdraw(*first)
    assert again[0].asked
    survivors.advance()
    place = survivors.reforming.place(*again)
    survivors.reforming.withdraw(*again)
    # The answer did not arrive, and it asks once more.
    third, member = survivors.ask(job, 0)
    assert third.settled.is_set()
    assert survivors.reforming.place(third, member) == place
    assert len(jobs.all) == 2


def test_who_hung_up_has_not_asked(survivors: Survivors, jobs: Jobs, world: World) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    survivors.reforming.withdraw(*survivors.ask(job, 0))
    survivors.ask(job, 2)
    survivors.advance()
    assert survivors.settled == []
    world.now += LEASE
    jobs.expire()  # and its lease counts again
    assert job.ranks(MemberState.LOST) == [0, 1]
    survivors.advance()
    assert jobs.named("train").world_size == 1


def test_a_place_that_was_lost_unheard_is_given_again(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    survivors.reform(job, 3)
    new = jobs.named("train")
    world.now += LEASE / 2
    jobs.heartbeat(new.incarnation, 2, new.members[2].nonce)
    world.now += LEASE / 2
    jobs.expire()  # rank 0 never got the answer
    assert set(new.members) == {2}
    place = survivors.reforming.place(*survivors.ask(job, 0))
    assert place.member is new.members[0]
    # Once more, but now another has taken the place.
    jobs.give_up(new, place.member, "gave up")
    join(jobs, "train", 0, 3)
    message = refused(Cause.WRONG_STATE, lambda: survivors.reforming.place(*survivors.ask(job, 0)))
    assert message == (
        f"job 'train' was formed again as incarnation {new.incarnation}, "
        "where rank 0 has lost its place: another has it now"
    )


def test_a_new_job_that_all_gave_up_is_formed_once_more(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    """Its switch was lost before it ran, and stayed away for longer than its ranks waited."""
    job = running(jobs, size=3)
    jobs.on_part_lost(ONLY, "killed")
    jobs.on_part_back(ONLY)
    survivors.reform(job, 3)
    second = jobs.named("train")
    jobs.on_part_lost(ONLY, "killed again")
    for rank in range(3):
        jobs.give_up(second, second.members[rank], "gave up after 60 s")
    assert second.state is JobState.ENDED
    asked = [survivors.ask(job, rank, 3, completed=7 + rank) for rank in range(3)]
    survivors.advance()
    assert not any(each.settled.is_set() for each, _ in asked)  # there is no switch
    assert jobs.named("train") is job  # nobody else can have the name meanwhile
    jobs.on_part_back(ONLY)
    survivors.advance()
    third = jobs.named("train")
    assert third.incarnation not in (job.incarnation, second.incarnation)
    for rank, each in enumerate(asked):
        survivors.reforming.withdraw(*each)
        place = survivors.reforming.place(*each)
        assert (place.job, place.member.rank, place.resume_from) == (third, rank, 7)
        attach(jobs, third, place.member)
    jobs.on_configured(third)
    assert third.state is JobState.RUNNING


def test_a_new_job_that_all_gave_up_is_not_formed_again_where_its_name_is_taken(
    survivors: Survivors, jobs: Jobs
) -> None:
    job = running(jobs, size=2)
    survivors.lose(job, 1)
    survivors.reform(job, 2)
    second = jobs.named("train")
    jobs.give_up(second, second.members[0], "gave up after 60 s")
    assert second.state is JobState.ENDED
    join(jobs, "train", 0, 2)
    message = refused(Cause.WRONG_STATE, lambda: survivors.reforming.place(*survivors.ask(job, 0)))
    assert "where rank 0 has lost its place: rank 0 (host host0, pid 100) gave up" in message


def test_an_elastic_job_does_not_wait_for_replacements(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=4)
    survivors.lose(job, 1)
    survivors.reform(job)
    second = jobs.named("train")
    for rank in (0, 2):
        jobs.begin_waiting(second.members[rank])
    world.now += LEASE
    jobs.expire()
    assert (second.state, second.cause) == (JobState.FAILED, Cause.RANK_LOST)
    assert second.ranks(MemberState.LOST) == [1]
    assert second in world.has_settled  # those who wait for it are told
    assert ranks(survivors.reform(second)) == {0: 0, 2: 1}
    assert jobs.named("train").world_size == 2


def test_all_or_nobody(survivors: Survivors, jobs: Jobs, world: World) -> None:
    job = running(jobs, size=3)
    jobs.fail(job, Cause.SWITCH_LOST, "it burns")
    members = job.active
    asked = [survivors.reforming.ask(job, m, 3, 0, "", intact=True) for m in members[:2]]
    survivors.advance()
    assert survivors.settled == []
    world.now += LEASE
    jobs.expire()  # rank 2
    survivors.advance()
    for reformation, member in zip(asked, members[:2], strict=True):
        message = refused(
            Cause.RANK_LOST,
            lambda pair=(reformation, member): survivors.reforming.place(*pair),
        )
        assert message == "job 'train' cannot continue as it was: rank 2 is gone"
        survivors.reforming.withdraw(reformation, member)
    refused(
        Cause.RANK_LOST,
        lambda: survivors.reforming.ask(job, members[0], 3, 0, "", intact=True),
    )
    assert ranks(survivors.reform(job)) == {0: 0, 1: 1}


def test_a_job_that_continues_where_it_was_fails_if_it_loses_a_rank_while_it_forms(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    """Those that are left would wait for a replacement, which has none of its results."""
    job = running(jobs, size=3)
    jobs.fail(job, Cause.SWITCH_LOST, "it burns")
    members = job.active
    asked = [survivors.reforming.ask(job, m, 3, 0, "", intact=True) for m in members]
    survivors.advance()
    second = jobs.named("train")
    for reformation, member in zip(asked, members, strict=True):
        survivors.reforming.place(reformation, member)
        survivors.reforming.withdraw(reformation, member)
    jobs.begin_waiting(second.members[0])
    jobs.begin_waiting(second.members[1])
    world.now += LEASE
    jobs.expire()  # rank 2
    assert (second.state, second.cause) == (JobState.FAILED, Cause.RANK_LOST)
    assert second.ranks(MemberState.LOST) == [2]
    assert ranks(survivors.reform(second)) == {0: 0, 1: 1}


def test_ranks_that_went_on_without_the_switch_get_a_new_job(
    survivors: Survivors, jobs: Jobs
) -> None:
    """By their ring, while neither switch nor controller was to be reached."""
    job = running(jobs, size=2)
    asked = survivors.reforming.ask(job, job.members[0], 2, 3, "", intact=True)
    assert (job.state, job.cause) == (JobState.FAILED, Cause.SWITCH_LOST)
    assert job.reason.startswith("rank 0 ")
    assert job.reason.endswith(" has gone on without the switch, and asks for a new job")
    survivors.reforming.withdraw(asked, job.members[0])
    assert ranks(survivors.reform(job)) == {0: 0, 1: 1}


def test_where_a_rank_has_left_there_is_none_for_those_on_the_ring(
    survivors: Survivors, jobs: Jobs
) -> None:
    job = running(jobs, size=2)
    jobs.leave(job.incarnation, 1, job.members[1].nonce)
    refused(
        Cause.WRONG_STATE,
        lambda: survivors.reforming.ask(job, job.members[0], 2, 3, "", intact=True),
    )
    assert job.state is JobState.RUNNING


def test_only_a_job_that_failed_is_formed_again(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=2)
    message = refused(Cause.WRONG_STATE, lambda: survivors.ask(job, 0))
    assert message == "job 'train' is running; only one that failed is formed again"
    jobs.delete("train")
    assert "deleted" in refused(Cause.DELETED, lambda: survivors.ask(job, 0))


def test_deletion_while_ranks_ask(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    asked = survivors.ask(job, 0)
    jobs.delete("train")
    survivors.advance()
    message = refused(Cause.DELETED, lambda: survivors.reforming.place(*asked))
    assert message == "job 'train' will not be formed again: deleted by an operator"
    survivors.reforming.withdraw(*asked)
    running(jobs, size=3)  # the name is free


def test_all_slots_in_use_are_no_obstacle(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3, slots=SLOTS)
    survivors.lose(job, 1)
    survivors.reform(job)
    assert jobs.holdings.slots_free(ONLY) == 0
    assert jobs.named("train").root.slots == range(SLOTS)


def test_what_cannot_be_founded_is_told_and_can_be_asked_for_again(
    survivors: Survivors, jobs: Jobs, world: World
) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)

    def full_disk() -> int:
        raise OSError("no space left")

    works, world.next_id = world.next_id, full_disk
    message = refused(Cause.NO_INCARNATION, lambda: survivors.reform(job))
    assert message == "no incarnation id for job 'train': no space left"
    assert jobs.holdings.slots_free(ONLY) == SLOTS
    world.next_id = works
    assert ranks(survivors.reform(job)) == {0: 0, 2: 1}


def test_shutting_down_while_ranks_ask(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=3)
    survivors.lose(job, 1)
    asked = survivors.ask(job, 0)
    jobs.close("the controller is shutting down")
    survivors.advance()
    with pytest.raises(JobRefusedError, match="shutting down"):
        survivors.reforming.place(*asked)


def test_a_running_job_that_a_rank_has_left_goes_on_with_fewer(
    survivors: Survivors, jobs: Jobs
) -> None:
    job = running(jobs, size=3)
    assert "running" in refused(Cause.WRONG_STATE, lambda: survivors.ask(job, 0))
    leave(jobs, job, 1)
    assert ranks(survivors.reform(job)) == {0: 0, 2: 1}
    assert (job.state, job.cause) == (JobState.FAILED, Cause.RANK_LOST)
    assert "rank 1 has left" in job.reason


def test_who_wants_all_ranks_does_not_end_a_running_job(survivors: Survivors, jobs: Jobs) -> None:
    job = running(jobs, size=2)
    leave(jobs, job, 1)
    member = job.members[0]
    refused(
        Cause.WRONG_STATE,
        lambda: survivors.reforming.ask(job, member, 2, 0, "", intact=True),
    )
    assert job.state is JobState.RUNNING
