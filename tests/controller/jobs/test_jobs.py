# SPDX-License-Identifier: Apache-2.0
"""Jobs without a switch: joining, HELLOs, leases, losses, and any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from jobs_world import (
    LEASE,
    SWITCH_IP,
    SWITCH_MAC,
    World,
    attach,
    beat,
    desert,
    join,
    leave,
    make_jobs,
    pass_time,
    place,
    refused,
    running,
)
from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.jobs import leases, presence
from p4reduce_controller.jobs.job import (
    AUTO_SLOTS,
    MAX_CHILDREN,
    SLOTS,
    Attachment,
    Job,
    JobMember,
    MemberState,
    Reformation,
)
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.jobs.reforming import Reforming
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import ONLY
from p4reduce_controller.values.dataclass_json import decode, encode


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def jobs(world: World) -> Jobs:
    return make_jobs(world)


def test_a_job_that_asks_for_no_number_of_slots_gets_the_controllers(world: World) -> None:
    jobs = make_jobs(world, default_slots=100)
    assert len(join(jobs, "a", 0, 1)[0].root.slots) == 100
    assert len(join(jobs, "b", 0, 1, slots=7)[0].root.slots) == 7


def test_each_job_gets_a_quarter_of_the_free_slots(world: World) -> None:
    jobs = make_jobs(world, default_slots=AUTO_SLOTS)
    made = [join(jobs, f"job{number}", 0, 1)[0] for number in range(11)]
    counts = [len(job.root.slots) for job in made]
    assert counts == [256, 192, 144, 108, 81, 60, 45, 34, 32, 32, 32]
    with pytest.raises(JobRefusedError, match="no 32 slots in a row for job 'job11': 8 of 1024"):
        join(jobs, "job11", 0, 1)
    leave(jobs, made[3], 0)
    jobs.release(made[3])
    assert len(join(jobs, "job11", 0, 1)[0].root.slots) == 32
    assert made[0].slot_count == 256
    assert join(jobs, "asks", 0, 1, slots=40)[0].slot_count == 40


def test_slots_that_are_free_in_gaps_are_given_as_far_as_they_fit(world: World) -> None:
    jobs = make_jobs(world, default_slots=AUTO_SLOTS)
    made = [join(jobs, f"job{number}", 0, 1, slots=64)[0] for number in range(16)]
    for job in made[::2]:
        leave(jobs, job, 0)
        jobs.release(job)
    assert len(join(jobs, "fits", 0, 1)[0].root.slots) == 64


# -- From the first to join to the last to leave --------------------------------------------


def test_a_whole_life(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    assert world.to_configure == [job]
    assert world.has_settled == [job]
    for rank in range(3):
        assert job.state is JobState.RUNNING
        assert world.to_remove == []
        leave(jobs, job, rank)
    assert job.state is JobState.ENDED
    assert world.to_remove == [job]
    # Nobody else gets them while the switch has the job.
    assert jobs.holdings.slots_free(ONLY) == SLOTS - 32
    jobs.release(job)
    assert jobs.holdings.slots_free(ONLY) == SLOTS
    assert world.kinds == [
        "job-created", "rank-joined", "rank-attached",
        "rank-joined", "rank-attached", "rank-joined", "rank-attached",
        "job-running", "rank-left", "rank-left", "rank-left", "job-ended",
    ]  # fmt: skip


def test_a_name_lives_again_with_another_incarnation(jobs: Jobs) -> None:
    first = running(jobs)
    for rank in range(3):
        leave(jobs, first, rank)
    second, _ = join(jobs, "train", 0, 2)
    assert second.incarnation != first.incarnation
    assert jobs.named("train") is second


def test_jobs_side_by_side_share_nothing(jobs: Jobs) -> None:
    made = [running(jobs, f"job{index}", size=4, slots=100) for index in range(10)]
    slots = [slot for job in made for slot in job.root.slots]
    ids = [id_ for job in made for id_ in job.root.replica_ids]
    groups = [group for job in made for group in job.root.groups]
    assert len(set(slots)) == len(slots) == 1000
    assert len(set(ids)) == len(ids) == 10 * 4 * 3
    assert len(set(groups)) == len(groups) == 20
    assert min(groups) > 1  # group 1 floods
    assert min(ids) > 0
    message = refused(Cause.EXHAUSTED, lambda: join(jobs, "more", 0, 1, 25))
    assert message.startswith(
        "no 25 slots in a row for job 'more': 24 of 1024 are free, at most 24 in a row. To free "
    )


def test_ranks_agree_on_urgent_slots(jobs: Jobs) -> None:
    """The first rank's word counts; also in a job that an operator made, and over a restart."""

    def member(name: str, rank: int, *urgent: int) -> Job:
        return jobs.join(name, rank, 2, 8, "here", 1, urgent_slots=urgent)[0]

    jobs.create("made", 2, 8)
    for name in ("train", "made"):
        job = member(name, 0, 3)
        message = refused(Cause.INVALID, lambda name=name: member(name, 1, 4))
        assert message.startswith("4 urgent slots do not fit job")
        assert member(name, 1, 3) is job
        assert decode(Job, encode(job)).urgent_slots == [3]
    message = refused(Cause.INVALID, lambda: member("other", 0, 8))
    assert message.startswith("8 urgent slots of 8 in job 'other'")
    for urgent, words in (
        ((3, 5), "3 + 5 urgent slots of 8 in job 'other'"),
        ((1, 0), "1 + 0 urgent slots in job 'other': each class needs one"),
        ((1,) * 8, "urgent slots of 8 classes in job 'other': 7 classes can have some"),
    ):
        message = refused(Cause.INVALID, lambda urgent=urgent: member("other", 0, *urgent))
        assert message.startswith(words)
    member("several", 0, 2, 1)
    for urgent in ((3,), (1, 2), ()):
        message = refused(Cause.INVALID, lambda urgent=urgent: member("several", 1, *urgent))
        assert message.endswith("which has 2 + 1; all ranks must ask for the same")
    assert jobs.living("other") is None


# -- What cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rank", "slots", "complaint"),
    [
        (0, 0, 0, "world size 0 is not within 1 and 64"),
        (
            65,
            0,
            0,
            "world size 65 is not within 1 and 64, as many ranks as one switch has room for; a "
            "tree of switches has room for 4,096 (serve --topology)",
        ),
        (4, 4, 0, "rank 4 is not below the world size 4"),
        (4, 0, 1025, "number of slots 1025 is not within 1 and 1024"),
    ],
)
def test_numbers_out_of_range(jobs: Jobs, size: int, rank: int, slots: int, complaint: str) -> None:
    message = refused(Cause.INVALID, lambda: join(jobs, "train", rank, size, slots))
    assert message == complaint
    assert jobs.all == []


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "\0", "x" * 101])
def test_bad_names(jobs: Jobs, name: str) -> None:
    assert "is not a job name" in refused(Cause.INVALID, lambda: join(jobs, name, 0, 1))


def test_names_are_anything_printable(jobs: Jobs) -> None:
    for name in ("x", "x" * 100, "größe 7/ü", "a b"):
        join(jobs, name, 0, 1)


def test_a_full_disk_costs_a_job_and_no_slots(world: World) -> None:
    def fail() -> int:
        raise OSError("no space left")

    world.next_id = fail
    jobs = make_jobs(world)
    message = refused(Cause.NO_INCARNATION, lambda: join(jobs, "train", 0, 1))
    assert message == "no incarnation id for job 'train': no space left"
    assert jobs.holdings.slots_free(ONLY) == SLOTS
    assert jobs.all == []


def test_ranks_that_do_not_agree(jobs: Jobs) -> None:
    join(jobs, "train", 0, 4, 16)
    message = refused(Cause.INVALID, lambda: join(jobs, "train", 1, 5))
    assert message == "world size 5 does not fit job 'train', which has 4"
    message = refused(Cause.INVALID, lambda: join(jobs, "train", 1, 4, 17))
    assert message == "17 slots do not fit job 'train', which has 16"
    join(jobs, "train", 1, 4, 0)  # whatever the job has


def test_a_taken_rank_names_its_owner(jobs: Jobs) -> None:
    join(jobs, "train", 1, 4)
    message = refused(Cause.TAKEN, lambda: join(jobs, "train", 1, 4))
    assert message == "rank 1 (host host1, pid 101) is in job 'train' already"


def test_a_running_job_takes_nobody_new(jobs: Jobs) -> None:
    job = running(jobs)
    leave(jobs, job, 1)
    message = refused(Cause.WRONG_STATE, lambda: join(jobs, "train", 1, 3))
    assert "ranks 0, 2 did not yet" in message


def test_nobody_speaks_for_another(jobs: Jobs) -> None:
    job, member = join(jobs, "train", 0, 2)
    key = (job.incarnation, 0, member.nonce ^ 1)
    for call in (jobs.heartbeat, jobs.leave, jobs.member):
        assert "not the nonce" in refused(Cause.WRONG_NONCE, lambda call=call: call(*key))
    refused(Cause.UNKNOWN, lambda: jobs.heartbeat(job.incarnation + 1, 0, member.nonce))
    refused(Cause.UNKNOWN, lambda: jobs.heartbeat(job.incarnation, 1, member.nonce))


def test_an_operators_job_waits_for_its_ranks(jobs: Jobs, world: World) -> None:
    job = jobs.create("train", 2, 8)
    refused(Cause.TAKEN, lambda: jobs.create("train", 2, 8))
    joined, member = join(jobs, "train", 0, 2)
    assert joined is job
    jobs.give_up(job, member, "tired")
    assert job.state is JobState.FORMING  # one that ranks made would be over
    jobs.delete("train")
    assert job.state is JobState.ENDED
    refused(Cause.UNKNOWN, lambda: jobs.delete("train"))
    refused(Cause.UNKNOWN, lambda: jobs.delete("nobody"))
    assert world.to_remove == [job]


# -- HELLO ------------------------------------------------------------------------------------


def test_the_same_hello_again_is_fine(jobs: Jobs, world: World) -> None:
    job, member = join(jobs, "train", 0, 2)
    for _ in range(3):
        attach(jobs, job, member)
    assert world.kinds.count("rank-attached") == 1
    assert jobs.hellos_refused[ONLY] == 0


BAD_HELLOS = {
    "unknown incarnation": lambda job, nonce: (job + 1, 0, nonce, place(0)),
    "rank that did not join": lambda job, nonce: (job, 1, nonce, place(0)),
    "wrong nonce": lambda job, nonce: (job, 0, nonce ^ 1, place(0)),
    "port not in use": lambda job, nonce: (job, 0, nonce, place(0, port=9)),
    "group MAC": lambda job, nonce: (job, 0, nonce, Attachment(1, 1 << 40, 0x0A000001, 9)),
    "zero MAC": lambda job, nonce: (job, 0, nonce, Attachment(1, 0, 0x0A000001, 9)),
    "the switch's MAC": lambda job, nonce: (job, 0, nonce, Attachment(1, SWITCH_MAC, 1 << 25, 9)),
    "the switch's address": lambda job, nonce: (
        job,
        0,
        nonce,
        Attachment(1, 2 << 40, SWITCH_IP, 9),
    ),
    "broadcast": lambda job, nonce: (job, 0, nonce, Attachment(1, 2 << 40, 0xFFFFFFFF, 9)),
    "no address": lambda job, nonce: (job, 0, nonce, Attachment(1, 2 << 40, 0, 9)),
    "UDP port 0": lambda job, nonce: (job, 0, nonce, Attachment(1, 2 << 40, 0x0A000001, 0)),
}


@pytest.mark.parametrize("case", BAD_HELLOS)
def test_a_wrong_hello_is_counted_and_changes_nothing(jobs: Jobs, world: World, case: str) -> None:
    job, member = join(jobs, "train", 0, 2)
    jobs.hello(*BAD_HELLOS[case](job.incarnation, member.nonce))
    assert jobs.hellos_refused[ONLY] == 1
    assert world.kinds[-1] == "hello-refused"
    assert member.state is MemberState.JOINED
    assert member.attachment is None
    attach(jobs, job, member)
    assert member.state is MemberState.ATTACHED


@pytest.mark.parametrize(
    "other",
    [
        Attachment(2, place(0).mac, place(0).ip, place(0).udp_port),
        Attachment(1, place(0).mac, place(0).ip + 1, place(0).udp_port),
        Attachment(1, place(0).mac, place(0).ip, place(0).udp_port + 1),
        Attachment(1, place(0).mac + 1, place(0).ip, place(0).udp_port),
    ],
)
def test_a_used_nonce_from_elsewhere_is_refused(
    jobs: Jobs, world: World, other: Attachment
) -> None:
    job, member = join(jobs, "train", 0, 2)
    attach(jobs, job, member, place(0))
    attach(jobs, job, member, other)
    assert member.attachment == place(0)
    assert jobs.hellos_refused[ONLY] == 1
    assert "attached from port 1" in world.texts[-1]


def test_one_mac_cannot_be_on_two_ports(jobs: Jobs, world: World) -> None:
    job, first = join(jobs, "train", 0, 3)
    _, second = join(jobs, "train", 1, 3)
    attach(jobs, job, first, Attachment(1, 2 << 40, 0x0A000001, 5))
    attach(jobs, job, second, Attachment(2, 2 << 40, 0x0A000001, 6))
    assert second.attachment is None
    assert "02:00:00:00:00:00 is on port 1 already, as rank 0 of job 'train'" in world.texts[-1]
    attach(jobs, job, second, Attachment(1, 2 << 40, 0x0A000001, 6))  # two processes of one host
    assert second.state is MemberState.ATTACHED


def test_ranks_on_one_port_differ_in_replica_and_admission(jobs: Jobs) -> None:
    job, first = join(jobs, "train", 0, 2)
    _, second = join(jobs, "train", 1, 2)
    attach(jobs, job, first, Attachment(1, 2 << 40, 0x0A000001, 5))
    attach(jobs, job, second, Attachment(1, 2 << 40, 0x0A000001, 6))
    layout = lay_out(job, jobs.topology, plan(job, jobs.topology))[ONLY]
    for group in layout.groups:
        assert len(set(group.replicas)) == len(group.replicas)
    assert len({tuple(row.match.items()) for row in layout.admissions}) == 2
    assert layout.stations == ((2 << 40, 1),)


def test_layout(jobs: Jobs) -> None:
    running(jobs, "other", size=2, slots=7)
    job = running(jobs, "train", size=2, slots=5)
    layout = lay_out(job, jobs.topology, plan(job, jobs.topology))[ONLY]
    full, halves = layout.groups
    actions = {row.match["replica"]: (row.action, row.params["rank"]) for row in layout.deliveries}
    assert [actions[replica] for _, replica in full.replicas] == [("whole", 0), ("whole", 1)]
    assert [actions[replica] for _, replica in halves.replicas] == [
        ("first_half", 0), ("second_half", 0), ("first_half", 1), ("second_half", 1),
    ]  # fmt: skip
    assert [port for port, _ in full.replicas] == [1, 2]
    assert [port for port, _ in halves.replicas] == [1, 1, 2, 2]
    assert layout.admissions[1].match == {
        "ingress_port": 2, "src_ip": place(1).ip, "job": job.incarnation, "rank": 1,
    }  # fmt: skip
    assert layout.admissions[1].params == {
        "worker_bit": 2, "all_workers": 3, "slot_base": 7, "slot_count": 5,
        "group_full": full.group, "group_halves": halves.group,
    }  # fmt: skip


# -- Waiting and leases -----------------------------------------------------------------------


def test_what_is_missing_is_said_rank_by_rank(jobs: Jobs) -> None:
    job, _ = join(jobs, "train", 2, 8)
    _, attached = join(jobs, "train", 4, 8)
    attach(jobs, job, attached)
    _, refused_one = join(jobs, "train", 5, 8)
    attach(jobs, job, refused_one, place(5, port=9))
    _, gone = join(jobs, "train", 6, 8)
    jobs.give_up(job, gone, "gave up after 3 s")
    assert job.missing().split("; ") == [
        "ranks 0-1, 3, 7 have not joined",
        "rank 6 (host host6, pid 106) gave up after 3 s",
        "rank 2 (host host2, pid 102) joined but its HELLO has not come through the switch: "
        "is its interface connected to a port of the switch?",
        "rank 5 (host host5, pid 105) joined but its HELLO was refused: "
        "port 9 is not one of the switch's ports in use",
    ]


def test_a_lease_that_runs_out_fails_the_job(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    beat(jobs, job, 1)
    pass_time(jobs, world, job, 5 / 8, 0, 2)
    assert job.state is JobState.RUNNING
    # The others' next heartbeats, an eighth of the lease later, are still within it.
    pass_time(jobs, world, job, 1 / 8, 0, 2)
    assert job.state is JobState.FAILED
    assert job.ranks(MemberState.LOST) == [1]
    assert job.reason == "rank 1 (host host1, pid 101) was lost: no heartbeat for 7.5 s"
    assert world.to_remove == []  # the others are still there
    leave(jobs, job, 0)
    assert world.to_remove == []
    desert(jobs, world)
    assert job.ranks(MemberState.LOST) == [1, 2]
    assert world.to_remove == [job]
    assert world.kinds.count("job-failed") == 1
    again = jobs.heartbeat(job.incarnation, 1, job.members[1].nonce)  # back, but too late
    assert again.state is JobState.FAILED


def test_leases_are_watched_less_often_while_nobody_has_one(jobs: Jobs, world: World) -> None:
    assert not jobs.expire()
    job = running(jobs)
    assert jobs.expire()
    for rank in (0, 1, 2):
        assert jobs.expire()
        leave(jobs, job, rank)
    assert not jobs.expire()
    join(jobs, "again", 0, 2)
    assert jobs.expire()
    desert(jobs, world)
    assert not jobs.expire()


def test_a_silence_of_all_is_not_about_any_rank(jobs: Jobs, world: World) -> None:
    """The control network is cut at some moment between their heartbeats, and is back later."""
    job = running(jobs)
    for silence in (0.7, 1.0, 3.0, leases.DESERTED - 0.5):
        beat(jobs, job, 0)
        world.now += LEASE / 8
        beat(jobs, job, 1, 2)
        for _ in range(round(40 * silence)):
            world.now += LEASE / 40
            jobs.expire()
        beat(jobs, job, 2)
        # The others may take as long again until their connections are up.
        pass_time(jobs, world, job, max(silence, 1) - 1 / 8, 2)
        beat(jobs, job, 0, 1)
        assert job.state is JobState.RUNNING
    pass_time(jobs, world, job, 1, 0, 2)  # and those who are then lost are noticed as ever
    assert job.ranks(MemberState.LOST) == [1]


def test_who_does_not_come_back_after_a_silence_of_all_is_lost(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    pass_time(jobs, world, job, 2)
    pass_time(jobs, world, job, 2, 0, 1)
    assert job.state is JobState.RUNNING
    pass_time(jobs, world, job, 1, 0, 1)
    assert job.ranks(MemberState.LOST) == [2]


@pytest.mark.parametrize("size", [1, 2])
def test_a_job_all_of_whose_ranks_are_gone_ends(jobs: Jobs, world: World, size: int) -> None:
    job = running(jobs, size=size)
    pass_time(jobs, world, job, leases.DESERTED - 1)
    assert job.state is JobState.RUNNING
    pass_time(jobs, world, job, 1)
    assert job.state is JobState.FAILED
    assert job.reason.startswith("rank 0 (host host0, pid 100) was lost: no")
    assert world.to_remove == [job]
    jobs.release(job)
    assert jobs.holdings.slots_free(ONLY) == SLOTS
    join(jobs, "train", 0, 1)  # the name is free as well


def test_all_but_those_that_left_are_all(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    leave(jobs, job, 1)
    leave(jobs, job, 2)
    pass_time(jobs, world, job, leases.DESERTED - 1)
    assert job.state is JobState.RUNNING
    pass_time(jobs, world, job, 1)
    assert job.ranks(MemberState.LOST) == [0]


def test_a_controller_that_stood_still_counts_no_silence(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    pass_time(jobs, world, job, 5 / 8, 0, 2)
    world.now += LEASE / 8
    jobs.stood_still()
    jobs.expire()
    pass_time(jobs, world, job, 7 / 8, 0, 2)
    assert job.state is JobState.RUNNING
    pass_time(jobs, world, job, 1 / 8, 0, 2)
    assert job.ranks(MemberState.LOST) == [1]


def test_a_lost_job_can_be_deleted(jobs: Jobs, world: World) -> None:
    job = running(jobs)
    pass_time(jobs, world, job, 1, 0)
    jobs.delete("train")
    assert job.state is JobState.ENDED
    assert world.to_remove == [job]


def test_the_name_of_a_failed_job_is_its_survivors(jobs: Jobs, world: World) -> None:
    failed = running(jobs)
    pass_time(jobs, world, failed, 1, 0)
    assert failed.state is JobState.FAILED
    assert not failed.over
    message = refused(Cause.WRONG_STATE, lambda: join(jobs, "train", 1, 3))
    assert message == (
        f"job 'train' has failed ({failed.reason}), and rank 0 may form it again. "
        "A new job of that name can begin when all have left, or it is deleted"
    )
    refused(Cause.WRONG_STATE, lambda: jobs.create("train", 3, 0))
    leave(jobs, failed, 0)
    fresh = running(jobs)
    assert not set(fresh.root.slots) & set(failed.root.slots)
    assert not set(fresh.root.replica_ids) & set(failed.root.replica_ids)


def test_a_rank_that_dies_before_the_job_runs_makes_room(jobs: Jobs, world: World) -> None:
    job, _ = join(jobs, "train", 0, 2)
    _, waiting = join(jobs, "train", 1, 2)
    jobs.begin_waiting(waiting)
    world.now += LEASE
    jobs.expire()
    assert set(job.members) == {1}  # who waits holds a connection and needs no heartbeat
    _, again = join(jobs, "train", 0, 2)
    attach(jobs, job, again)
    attach(jobs, job, waiting)
    jobs.on_configured(job)
    jobs.end_waiting(waiting)
    assert job.state is JobState.RUNNING


def test_a_job_that_nobody_waits_for_any_more_is_over(jobs: Jobs, world: World) -> None:
    job, member = join(jobs, "train", 0, 2)
    jobs.give_up(job, member, "gave up after 1 s")
    assert job.state is JobState.ENDED
    assert world.to_remove == [job]
    jobs.release(job)
    assert jobs.holdings.slots_free(ONLY) == SLOTS


# -- When the switch does not play along --------------------------------------------------------


def test_a_job_that_the_switch_refuses(jobs: Jobs, world: World) -> None:
    job, member = join(jobs, "train", 0, 1)
    attach(jobs, job, member)
    jobs.fail(job, Cause.EXHAUSTED, "table full")
    assert job.state is JobState.FAILED
    assert job.reason == "table full"
    assert world.has_settled == [job]
    assert world.to_remove == [job]


def test_a_rank_that_goes_while_the_switch_is_configured(jobs: Jobs, world: World) -> None:
    job, first = join(jobs, "train", 0, 2)
    _, second = join(jobs, "train", 1, 2)
    attach(jobs, job, first)
    attach(jobs, job, second)
    jobs.give_up(job, second, "its connection broke")
    assert job.state is JobState.FAILED
    jobs.on_configured(job)  # too late
    assert job.state is JobState.FAILED
    assert world.to_remove == [job]
    jobs.release(job)
    assert jobs.holdings.slots_free(ONLY) == SLOTS


def test_a_job_deleted_while_the_switch_is_configured(jobs: Jobs, world: World) -> None:
    job, member = join(jobs, "train", 0, 1)
    attach(jobs, job, member)
    jobs.delete("train")
    jobs.on_configured(job)
    assert job.state is JobState.ENDED
    assert world.to_remove == [job]


def test_a_lost_switch_fails_what_ran_there(jobs: Jobs, world: World) -> None:
    runs = running(jobs, "a")
    jobs.on_part_lost(ONLY, "it burns")
    assert (runs.state, runs.cause) == (JobState.FAILED, Cause.SWITCH_LOST)
    assert runs.reason == "the switch was lost: it burns"
    assert world.to_remove == [runs]
    jobs.release(runs)
    assert jobs.holdings.slots_free(ONLY) == SLOTS
    for call in (lambda: join(jobs, "c", 0, 2), lambda: jobs.create("d", 1, 1)):
        assert refused(Cause.SWITCH_LOST, call) == "the switch was lost: it burns"
    assert jobs.heartbeat(runs.incarnation, 0, runs.members[0].nonce).state is JobState.FAILED
    jobs.on_part_back(ONLY)
    join(jobs, "c", 0, 2)
    refused(Cause.WRONG_STATE, lambda: join(jobs, "a", 0, 3))  # its ranks may continue
    desert(jobs, world)
    assert runs.ranks(MemberState.LOST) == [0, 1, 2]
    running(jobs, "a")


def test_a_forming_job_outlives_the_switch(jobs: Jobs, world: World) -> None:
    job, first = join(jobs, "train", 0, 2)
    _, second = join(jobs, "train", 1, 2)
    attach(jobs, job, first)
    attach(jobs, job, second)
    assert job.configuring
    ids = set(job.root.replica_ids)
    jobs.on_part_lost(ONLY, "it burns")
    assert job.state is JobState.FORMING
    assert not job.configuring
    assert not job.root.replica_ids
    jobs.on_configured(job)  # from a switch that is no more
    assert job.state is JobState.FORMING
    jobs.on_part_back(ONLY)
    assert world.to_configure == [job]  # only the first time
    attach(jobs, job, first, place(0, port=3))  # it may come by another port now
    attach(jobs, job, second)
    assert world.to_configure == [job, job]
    assert ids.isdisjoint(job.root.replica_ids)
    jobs.on_configured(job)
    assert job.state is JobState.RUNNING


def test_a_session_that_broke_while_the_switch_was_written_to(jobs: Jobs, world: World) -> None:
    job, member = join(jobs, "train", 0, 1)
    attach(jobs, job, member)
    jobs.on_part_back(ONLY)  # another session, with the same switch as it was
    assert world.to_configure == [job, job]
    jobs.on_configured(job)
    assert job.state is JobState.RUNNING


def test_closing_ends_everything(jobs: Jobs, world: World) -> None:
    runs, failed = running(jobs, "a"), running(jobs, "b")
    forms, _ = join(jobs, "c", 0, 2)
    jobs.fail(failed, Cause.RANK_LOST, "one died")
    jobs.close("good night")
    for job in (runs, failed, forms):
        assert (job.state, job.cause, job.reason) == (
            JobState.ENDED, Cause.SHUTDOWN, "good night",
        )  # fmt: skip
    assert world.to_remove == [runs, failed, forms]
    assert refused(Cause.SHUTDOWN, lambda: join(jobs, "d", 0, 1)) == "good night"


def test_the_past_is_forgotten_in_the_end(jobs: Jobs, world: World) -> None:
    for number in range(300):
        jobs.release(jobs.delete(jobs.create(f"job{number}", 1, 1).name))
    assert len(jobs.all) <= 201
    refused(Cause.UNKNOWN, lambda: jobs.named("job0"))
    assert jobs.named("job299").state is JobState.ENDED


def test_suggested_addresses_are_unique_and_proper(jobs: Jobs) -> None:
    seen: set[int] = set()
    for name in ("a", "b"):
        for rank in range(MAX_CHILDREN):
            job, member = join(jobs, name, rank, MAX_CHILDREN)
            mac, ip = member.mac, jobs.holdings.suggested_ip(member)
            assert ip >> 16 == SWITCH_IP >> 16
            assert {mac, ip}.isdisjoint(seen | {SWITCH_MAC, SWITCH_IP})
            seen |= {mac, ip}
            attach(jobs, job, member, Attachment(1, mac, ip, 1))
    assert jobs.hellos_refused[ONLY] == 0


def test_who_was_given_an_address_comes_from_no_other(jobs: Jobs) -> None:
    job, member = jobs.join("a", 0, 2, 0, "host0", 100, own_address=False)
    ip = jobs.holdings.suggested_ip(member)
    attach(jobs, job, member, Attachment(1, member.mac ^ 1, ip, 1))
    assert member.attachment is None
    assert "it was given 02:" in member.refusal
    attach(jobs, job, member, Attachment(1, member.mac, ip ^ 1, 1))
    assert member.attachment is None
    attach(jobs, job, member, Attachment(1, member.mac, ip, 1))
    assert member.attachment is not None


def test_nobody_else_gets_an_address_that_was_given_away(jobs: Jobs) -> None:
    """Not even before the one whose it is has come; nor from the same port."""
    job, member = jobs.join("a", 0, 2, 0, "host0", 100, own_address=False)
    other_job, thief = join(jobs, "b", 0, 2)
    attach(jobs, other_job, thief, Attachment(1, member.mac, 0x0A4D0042, 1))
    assert thief.attachment is None
    assert "was given to rank 0 of job 'a'" in thief.refusal
    mine = Attachment(1, member.mac, jobs.holdings.suggested_ip(member), 1)
    attach(jobs, job, member, mine)
    assert member.attachment == mine


def test_a_hosts_address_stays_at_its_port(world: World) -> None:
    jobs = make_jobs(world, stations=((2 << 40, 5),))
    job, member = join(jobs, "train", 0, 2)
    attach(jobs, job, member, Attachment(1, 2 << 40, 0x0A000001, 5))
    assert member.attachment is None
    assert "02:00:00:00:00:00 belongs to port 5 (--station), but comes from port 1" in (
        member.refusal
    )
    mine = Attachment(5, 2 << 40, 0x0A000001, 5)
    attach(jobs, job, member, mine)
    assert member.attachment == mine


def test_addresses_to_come_cannot_be_foreseen(world: World) -> None:
    """The same ranks of the same incarnations get others in another life of the controller."""
    given = [
        [join(make_jobs(one), "a", rank, 8)[1].mac for rank in range(8)]
        for one in (World(), World())
    ]
    assert not set(given[0]) & set(given[1])
    assert all(mac >> 40 == 0x02 for mac in given[0])


# -- Anything in any order ----------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, what is handed out is owned once and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.jobs = make_jobs(self.world)
        self.known: list[tuple[Job, JobMember]] = []
        self.asking: list[tuple[Reformation, JobMember]] = []
        self.reforming = Reforming(self.jobs, self.world)

    @rule(name=st.sampled_from("ab"), rank=st.integers(0, 2), size=st.integers(1, 3))
    def join(self, name: str, rank: int, size: int) -> None:
        try:
            self.known.append(join(self.jobs, name, rank, size, 400))
        except JobRefusedError as error:
            if not str(error):
                raise

    @precondition(lambda self: self.known)
    @rule(data=st.data(), what=st.sampled_from(["attach", "leave", "give up", "heartbeat"]))
    def act(self, data: st.DataObject, what: str) -> None:
        job, member = data.draw(st.sampled_from(self.known))
        try:
            if what == "attach":
                attach(self.jobs, job, member)
            elif what == "leave":
                self.jobs.leave(job.incarnation, member.rank, member.nonce)
            elif what == "heartbeat":
                self.jobs.heartbeat(job.incarnation, member.rank, member.nonce)
            else:
                self.jobs.give_up(job, member, "tired")
        except JobRefusedError as error:
            if error.cause not in (Cause.UNKNOWN, Cause.WRONG_NONCE):
                raise

    @precondition(lambda self: self.world.to_configure)
    @rule(works=st.booleans())
    def configure(self, works: bool) -> None:
        job = self.world.to_configure.pop(0)
        if works:
            self.jobs.on_configured(job)
        else:
            self.jobs.fail(job, Cause.SWITCH_REFUSED, "no")

    @precondition(lambda self: self.world.to_remove)
    @rule()
    def remove(self) -> None:
        job = self.world.to_remove.pop(0)
        assert job.over
        self.jobs.release(job)

    @rule(name=st.sampled_from("ab"))
    def delete(self, name: str) -> None:
        try:
            self.jobs.delete(name)
        except JobRefusedError as error:
            if error.cause is not Cause.UNKNOWN:
                raise

    @rule(seconds=st.floats(0, LEASE * 1.5))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.jobs.expire()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), world_size=st.integers(0, 3), intact=st.booleans())
    def ask(self, data: st.DataObject, world_size: int, intact: bool) -> None:
        job, member = data.draw(st.sampled_from(self.known))
        try:
            asked = self.reforming.ask(job, member, world_size, 0, "", intact=intact)
        except JobRefusedError as error:
            if not str(error):
                raise
        else:
            self.asking.append((asked, member))

    @precondition(lambda self: self.asking)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        asked, member = data.draw(st.sampled_from(self.asking))
        self.asking.remove((asked, member))
        try:
            if asked.settled.is_set():
                place = self.reforming.place(asked, member)
                self.known.append((place.job, place.member))
        except JobRefusedError as error:
            if not str(error):
                raise
        self.reforming.withdraw(asked, member)

    @rule(as_it_was=st.booleans())
    def lose_the_switch(self, as_it_was: bool) -> None:
        # What was asked of the old session is not done.
        self.world.to_configure.clear()
        if not as_it_was:
            self.jobs.on_part_lost(ONLY, "it burns")
        self.jobs.on_part_back(ONLY)

    @rule()
    def restart(self) -> None:
        kept = [decode(Job, encode(job)) for job in self.jobs.worth_keeping()]
        self.world.to_configure.clear()
        self.world.to_remove.clear()
        self.jobs = make_jobs(self.world)
        self.jobs.restore(kept)
        self.jobs.resume()
        self.reforming = Reforming(self.jobs, self.world)
        self.asking = []
        self.known = [(job, member) for job in kept for member in job.members.values()]

    @invariant()
    def advance(self) -> None:
        self.reforming.advance()

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        waiting = sum(member.waiting for job in self.jobs.all for member in job.members.values())
        assert waiting <= len(self.asking)

    @invariant()
    def owned_once(self) -> None:
        held = [job for job in self.jobs.all if not job.over or job in self.world.to_remove]
        slots = [slot for job in held for slot in job.root.slots]
        assert len(slots) == len(set(slots)) == SLOTS - self.jobs.holdings.slots_free(ONLY)
        ids = [id_ for job in held for id_ in job.root.replica_ids]
        assert len(ids) == len(set(ids))
        for job in held:
            if job.state is JobState.RUNNING:
                assert len(job.members) == job.world_size
                assert any(member.active for member in job.members.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# -- Many ranks at once ----------------------------------------------------------------------------


def test_many_ranks_that_are_lost_at_once_are_told_of_in_one_line() -> None:
    world = World()
    jobs = make_jobs(world)
    job = running(jobs, size=64, slots=4)
    world.kinds.clear()
    world.texts.clear()
    pass_time(jobs, world, job, 1.2, 5)
    assert [kind for kind in world.kinds if kind == "rank-lost"] == ["rank-lost"]
    text = world.texts[world.kinds.index("rank-lost")]
    assert text.startswith("rank 0 (host host0, pid 100) was lost: no heartbeat for ")
    assert text.endswith("; so were 62 others: ranks 1-4, 6-63")
    assert job.reason == text


def test_ranks_whose_processes_end_one_by_one_are_told_of_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: set[int] = set()
    monkeypatch.setattr(presence, "process_start", lambda pid: None if pid in ended else 7)
    world = World()
    jobs = make_jobs(world)
    job = running(jobs, size=8)
    for member in job.members.values():
        member.local = True
        jobs.begin_presence(member)
    world.kinds.clear()
    world.texts.clear()
    for rank in (3, 4, 6, 7):
        ended.add(job.members[rank].pid)
        jobs.end_presence(job, job.members[rank])
    assert world.kinds == ["rank-lost", "job-failed"]
    assert "others" not in job.reason
    jobs.expire()
    assert world.kinds[2:] == ["rank-lost"]
    assert world.texts[2] == (
        "rank 4 (host host4, pid 104) was lost: its process has ended; so were 2 others: ranks 6-7"
    )
    jobs.expire()
    assert len(world.kinds) == 3
    assert job.ranks(MemberState.LOST) == [3, 4, 6, 7]
