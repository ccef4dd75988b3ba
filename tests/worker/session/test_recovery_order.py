# SPDX-License-Identifier: Apache-2.0
"""Recovery in the orders of events that a busy machine has once in hundreds of losses.

The test is the driver: it says what ends when, and sees what the rank does next.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce.errors import (
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session.job_client import JoinedJob, Member
from p4reduce.session.recovery import (
    AgreeOnSwitch,
    AskController,
    AttachToSwitch,
    Ended,
    Event,
    HaltEngine,
    OpenTransport,
    RecoveryProtocol,
    ReduceByRing,
    ReformJob,
    ResumeSession,
    Work,
    why_over,
)
from p4reduce.wire.format import Endpoint

NOWHERE = Endpoint("02:00:00:00:00:01", "10.77.0.1", 1)
SWITCH_LOST = pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_SWITCH_LOST)
FORMING, RUNNING = pb.HeartbeatReply(state=pb.FORMING), pb.HeartbeatReply(state=pb.RUNNING)
NOT_FOUND = ControlError(grpc.StatusCode.NOT_FOUND, "no such rank")


def member(incarnation: int) -> Member:
    return Member(incarnation, 0, 3, incarnation, NOWHERE, NOWHERE)


def call(seconds: float) -> Any:
    """Return a collective that has so long."""
    return SimpleNamespace(started=0.0, deadline=seconds, description="allreduce 6")


class Transport:
    """A connection; `is_closed` says whether it was."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Rank:
    """A rank that has lost its switch at time 0, and whatever it has under way."""

    ring_after: float | None = None

    def __post_init__(self) -> None:
        self.members: list[int] = []
        self.protocol = RecoveryProtocol(
            "test",
            member(1),
            "a test",
            0.0,
            0,
            self.ring_after,
            lambda to: self.members.append(to.incarnation),
        )
        self._steps = self.protocol.steps()
        self._now = 0.0
        self.works = next(self._steps).works

    @property
    def work(self) -> Work:
        """The one that is under way last."""
        return self.works[-1]

    def happens(self, **what: Any) -> None:
        """Let something happen."""
        self.works = self._steps.send(Event(self._now, **what)).works

    def ends(self, kind: type[Work], result: Any = None, error: Exception | None = None) -> None:
        """Let what is under way end, which is of that kind."""
        work = self.work
        assert isinstance(work, kind)
        self.happens(ended=Ended(work, result, error))

    def waits(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self.happens()


def joined(incarnation: int, transport: Any) -> JoinedJob:
    return JoinedJob(member(incarnation), transport, pb.Ready(world_size=3))


def test_a_job_that_lost_its_switch_is_formed_again() -> None:
    rank, transport = Rank(), Transport()
    rank.ends(HaltEngine)
    rank.ends(AskController, SWITCH_LOST)
    rank.ends(ReformJob, member(2))
    rank.ends(OpenTransport, transport)
    rank.ends(AttachToSwitch, joined(2, transport))
    rank.ends(AgreeOnSwitch, found := joined(2, transport))
    assert isinstance(rank.work, ResumeSession)
    assert rank.work.found is found
    with pytest.raises(StopIteration):
        rank.ends(ResumeSession)
    assert not transport.is_closed


def test_a_rank_whose_place_was_given_up_gets_it_again_by_its_member_before() -> None:
    """Its way to the switch broke while the job formed."""
    rank = Rank()
    rank.ends(HaltEngine)
    rank.ends(AskController, SWITCH_LOST)
    rank.ends(ReformJob, member(2))
    rank.ends(OpenTransport, error=SwitchUnreachableError("nobody listens"))
    rank.waits(0.1)
    rank.ends(AskController, error=NOT_FOUND)
    rank.waits(0.1)
    rank.ends(AskController, SWITCH_LOST)
    assert isinstance(rank.work, ReformJob)
    assert rank.work.member.incarnation == 1
    rank.ends(ReformJob, member(2))
    assert rank.members == [2, 1, 2]


def test_a_job_that_the_controller_does_not_know_is_over_after_a_while() -> None:
    rank = Rank()
    rank.ends(HaltEngine)
    rank.ends(AskController, error=NOT_FOUND)
    rank.waits(4.0)
    rank.ends(AskController, error=NOT_FOUND)
    rank.waits(2.0)
    with pytest.raises(P4ReduceError, match="rank 0 of job 'test' cannot continue: no such rank"):
        rank.ends(AskController, error=NOT_FOUND)


def test_a_progress_thread_that_the_machine_holds_up_is_waited_for() -> None:
    rank = Rank()
    for _ in range(50):
        rank.waits(1.0)
        assert isinstance(rank.work, HaltEngine)
    rank.ends(HaltEngine)
    assert isinstance(rank.work, AskController)


def test_a_progress_thread_that_never_ends_is_named_at_the_deadline() -> None:
    rank = Rank()
    rank.waits(1.0)
    with pytest.raises(
        P4ReduceTimeoutError, match=r"allreduce 6 is not complete .* progress thread"
    ):
        rank.happens(due=call(0.5))


def test_long_times_are_whole_seconds() -> None:
    """torch's own timeout is 1,800 s; three digits of it are 1.8e+03."""
    rank = Rank()
    rank.waits(1799.6)
    with pytest.raises(P4ReduceTimeoutError, match=r"after 1,800 s: the switch was lost 1,800 s a"):
        rank.happens(due=call(1700.0))


def test_the_deadline_says_what_was_waited_for() -> None:
    rank, transport = Rank(), Transport()
    rank.ends(HaltEngine)
    rank.ends(AskController, SWITCH_LOST)
    rank.ends(ReformJob, member(2))
    rank.ends(OpenTransport, transport)
    rank.waits(3.0)
    with pytest.raises(P4ReduceTimeoutError, match="not all ranks have reached the switch again"):
        rank.happens(due=call(2.0))


def test_a_transport_that_opens_as_the_communicator_closes_is_closed() -> None:
    rank, transport = Rank(), Transport()
    rank.ends(HaltEngine)
    rank.ends(AskController, SWITCH_LOST)
    rank.ends(ReformJob, member(2))
    with pytest.raises(P4ReduceError):
        rank.happens(ended=Ended(rank.work, transport), is_over=True)
    assert transport.is_closed


def test_a_rank_that_was_stopped_hears_first_whether_it_was_lost_itself() -> None:
    rank, lost = Rank(), pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_RANK_LOST, lost=[0])
    rank.ends(HaltEngine)
    rank.happens(due=call(-30.0))  # which ended while the process was stopped
    work = rank.work
    assert isinstance(work, AskController)
    with pytest.raises(WorkerLostError, match="itself declared lost"):
        rank.happens(due=call(-30.0), ended=Ended(work, lost))


@pytest.mark.parametrize(
    ("lost", "named"), [((2,), "rank 2 was lost"), ((0, 2), "ranks 0, 2 were lost")]
)
def test_a_rank_that_was_lost_while_there_was_no_switch_is_named(
    lost: tuple[int, ...], named: str
) -> None:
    """The controller's reason is that of the job, which had failed before: its switch."""
    reason = "the switch was lost: nobody listens there"
    reply = pb.HeartbeatReply(state=pb.FAILED, cause=pb.CAUSE_SWITCH_LOST, reason=reason, lost=lost)
    error = why_over("train", Member(1, 1, 3, 1, NOWHERE, NOWHERE), reply)
    assert isinstance(error, WorkerLostError)
    assert error.ranks == lost
    assert str(error) == f"job 'train' has failed: {named} while it had no switch ({reason})"


def test_the_life_that_is_found_just_as_the_ring_begins_is_let_go() -> None:
    """A rank that reduces by the ring is out of step with it, so it asks for another one."""
    rank, old, new = Rank(ring_after=1.0), Transport(), Transport()
    rank.ends(HaltEngine)
    rank.ends(AskController, error=ControlError(grpc.StatusCode.UNAVAILABLE, "no switch"))
    rank.protocol.progress.unheard = True  # the controller did not answer either
    rank.waits(0.9)
    rank.ends(AskController, RUNNING)
    assert isinstance(rank.work, OpenTransport)
    rank.protocol.progress.unheard = True
    rank.waits(0.2)
    assert isinstance(rank.works[0], ReduceByRing)
    rank.ends(OpenTransport, old)
    assert old.is_closed
    rank.waits(0.1)
    rank.ends(AskController, RUNNING)
    rank.ends(ReformJob, member(2))
    rank.ends(OpenTransport, new)
    rank.ends(AttachToSwitch, joined(2, new))
    ring = rank.work
    assert isinstance(ring, ReduceByRing)
    assert ring.incarnation == 2
    rank.ends(ReduceByRing)
    assert isinstance(rank.work, AgreeOnSwitch)
    assert not new.is_closed
