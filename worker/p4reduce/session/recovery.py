# SPDX-License-Identifier: Apache-2.0
"""After the loss of a switch or a rank, step by step, without a thread, a socket or a clock.

`RecoveryProtocol.steps` is a generator. It says what has to be under way, and gets an `Event`: what
has ended, what has changed, and the time. Its driver is a thread (`recovery_thread`), or the model,
which visits all orders of events (model/p4reduce_model/recoveries.py).

No step is taken that is not in `TRANSITIONS`. The drawing in docs/faults.md is made from that table
(`tools/draw_states.py`), and the model walks all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import grpc
from p4reduce_common.figures import three_digits

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError, NoAnswerError
from p4reduce.errors import (
    JobEndedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session.agreement import ResumeAgreement
from p4reduce.session.job_client import JoinedJob, Member, translated
from p4reduce.session.port import PortShare
from p4reduce.tensors.stream import Collective
from p4reduce.wire.rank_sets import describe_ranks

T = TypeVar("T")

UNKNOWN_FOR = 5.0  # seconds for which a restarted controller may not know the job
ALL_RANKS = "not all ranks have reached the switch again"
_NOTICED_WITHIN = 0.25  # seconds for the controller to notice what this rank has noticed
_GRACE = 4.0  # seconds to hear from the controller what has happened meanwhile
_PAUSE = 0.05  # seconds between two attempts
_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_PASSING = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""Refusals that a further look at the job explains, or that pass."""

# -- The states, and every transition between them -------------------------------------------------


class RecoveryState(Enum):
    """The state of a recovery. The value says what the rank does in it."""

    HALTING = "waits for its own progress thread to end"
    SEEKING = "looks for the switch that was lost"
    AGREEING = "agrees with the other ranks on where they continue"
    ON_RING = "reduces by the ring, until all ranks have a switch"
    RESUMING = "hands the switch to the session"
    SETTLING = "agrees with the ranks that remain on what is over"
    RESUMED = "reduces by the switch again"
    FAILED = "has ended all calls with an error"
    UNWANTED = "ends, as the communicator is closed or broken"


class RecoveryEvent(Enum):
    """An event of a recovery. The value is the label in the drawing."""

    HALTED = "the thread has ended"
    FOUND = "the switch was there all along"
    FOUND_AGAIN = "all ranks are on a switch again"
    AGREED = "all ranks agree"
    FAILED_THERE = "that switch is lost too"
    DUE_ON_RING = "all have lost it"
    RING_AGREED = "all have a switch"
    RESUMED = "the session has it"
    RANK_LOST = "a rank is lost"
    FAILED = "a deadline, or nothing left to try"
    UNWANTED = "closed"


ENDS = frozenset({RecoveryState.RESUMED, RecoveryState.FAILED, RecoveryState.UNWANTED})

TRANSITIONS: dict[RecoveryState, dict[RecoveryEvent, RecoveryState]] = {
    RecoveryState.HALTING: {RecoveryEvent.HALTED: RecoveryState.SEEKING},
    RecoveryState.SEEKING: {
        RecoveryEvent.FOUND: RecoveryState.RESUMING,
        RecoveryEvent.FOUND_AGAIN: RecoveryState.AGREEING,
        RecoveryEvent.DUE_ON_RING: RecoveryState.ON_RING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.AGREEING: {
        RecoveryEvent.AGREED: RecoveryState.RESUMING,
        RecoveryEvent.FAILED_THERE: RecoveryState.SEEKING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.ON_RING: {
        RecoveryEvent.RING_AGREED: RecoveryState.AGREEING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.RESUMING: {
        RecoveryEvent.RESUMED: RecoveryState.RESUMED,
        RecoveryEvent.FAILED_THERE: RecoveryState.SEEKING,
    },
    RecoveryState.SETTLING: {},
}
"""From each state that is no end, by each event. `FAILED` and `UNWANTED` end all of these but
RESUMING, which takes no time."""

for _state, _moves in TRANSITIONS.items():
    if _state is not RecoveryState.RESUMING:
        _moves[RecoveryEvent.FAILED] = RecoveryState.FAILED
        _moves[RecoveryEvent.UNWANTED] = RecoveryState.UNWANTED


def after(state: RecoveryState, event: RecoveryEvent) -> RecoveryState:
    """Return the next state. Raises P4ReduceError if the table has no such transition: a bug."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise P4ReduceError(
            f"recovering is in state {state.name}, which has no transition for {event.name}"
        ) from None


# -- What is under way, and what happens -----------------------------------------------------------


@dataclass
class Progress:
    """How far the search for a switch is.

    Attributes:
        awaited: why the rank cannot continue yet, as a clause for people.
        switch_there: whether it waits for something else than the switch.
        all_lost: whether the whole job has lost the switch, not only this rank.
        unheard: whether the controller does not answer.
    """

    awaited: str = "the controller has not said yet how the job is"
    switch_there: bool = False
    all_lost: bool = False
    unheard: bool = False


@dataclass(frozen=True, eq=False)
class HaltEngine:
    """End this process's progress thread. What it ran stays as it is."""


@dataclass(frozen=True, eq=False)
class AskController:
    """Ask how the job is. The result is the controller's answer to a heartbeat."""

    member: Member


@dataclass(frozen=True, eq=False)
class ReformJob:
    """Ask for the next life of the job. The result is the membership in it."""

    member: Member


@dataclass(frozen=True, eq=False)
class OpenTransport:
    """Open the transport to the switch, with a UDP port of its own, or 0 for any."""

    udp_port: int


@dataclass(frozen=True, eq=False)
class AttachToSwitch:
    """Wait until all ranks are on the switch. The result is a `JoinedJob`.

    A rank that ends it gives up its place. So it opens other transports where one breaks, and says
    in `RecoveryProtocol.progress` what it waits for.
    """

    member: Member
    transport: PortShare


@dataclass(frozen=True, eq=False)
class AgreeOnSwitch:
    """Agree with all ranks on where they continue. The result is a `ResumeAgreement`."""

    joined: JoinedJob


@dataclass(eq=False)
class ReduceByRing:
    """Reduce by the ring until all ranks name the same incarnation to go back by.

    Attributes:
        incarnation: that of this rank; 0: it has no switch.
    """

    incarnation: int = 0


@dataclass(frozen=True, eq=False)
class SettleCalls:
    """Agree with the ranks that remain on which collectives are complete."""

    member: Member


@dataclass(frozen=True, eq=False)
class ResumeSession:
    """Let the session continue with the switch, and own it."""

    found: PortShare | ResumeAgreement


Work = (
    HaltEngine
    | AskController
    | ReformJob
    | OpenTransport
    | AttachToSwitch
    | AgreeOnSwitch
    | ReduceByRing
    | SettleCalls
    | ResumeSession
)


@dataclass(frozen=True)
class Await:
    """Have these under way and nothing else, and wait for the next event, or so many seconds."""

    works: tuple[Work, ...]
    seconds: float


@dataclass(frozen=True)
class Ended:
    """What one of them came to."""

    work: Work
    result: Any = None
    error: BaseException | None = None

    def value(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(frozen=True)
class Event:
    """Something has happened, or the time to wait for it has passed.

    Attributes:
        now: on the monotonic clock.
        is_over: no switch is wanted any more.
        rank_lost: a rank was lost.
        due: the collective in flight with the earliest deadline.
        ended: what has ended, if anything has.
    """

    now: float
    is_over: bool = False
    rank_lost: WorkerLostError | None = None
    due: Collective | None = None
    ended: Ended | None = None


Steps = Generator[Await, Event, T]
Found = PortShare | JoinedJob
"""The switch: by another transport in the same life of the job, or in the next life."""

Connection = PortShare | JoinedJob | ResumeAgreement
OPENING = (OpenTransport, AttachToSwitch, AgreeOnSwitch)
"""Works whose result is a connection."""


def _carried(work: Work) -> object:
    """Return the connection that a work takes over."""
    match work:
        case AttachToSwitch():
            return work.transport
        case AgreeOnSwitch():
            return work.joined
        case ResumeSession():
            return work.found
    return work


class UnwantedError(P4ReduceError):
    """No switch is wanted any more."""


@dataclass(eq=False)
class _Attempt:
    """A search for a switch: what it waits for, and the switch when it is found."""

    search: Steps[Found]  # looks at `RecoveryProtocol.event` whenever it continues
    wanted: Await = Await((), math.inf)
    found: Found | None = None

    def go_on(self) -> None:
        """Continue after an event. Raises what it ends with."""
        if self.found is not None:
            return
        try:
            self.wanted = next(self.search)
        except StopIteration as end:
            self.wanted, self.found = Await((), math.inf), end.value


@dataclass(eq=False)
class RecoveryProtocol:
    """The recovery of one rank: once for each loss.

    Args:
        member: in the life that lost its switch, which the present slots belong to. Only in that
            life can they continue over another transport; a later one has fresh slots.
        why: the reason of the loss, for people.
        started: when that was, on the monotonic clock.
        udp_port: of the former transport; 0 if it had none.
        ring_after: seconds without a switch until the ring takes over; None: there is no ring.
        on_member: called with each new membership.

    Attributes:
        state: the present one.
        transition: returns the next state; what the model watches.
        latest: the membership in the latest life of the job.
        before: the one in the life before, which gets the rank a place in the latest again.
        progress: of the search for a switch.
        event: the latest one.
        connection: what no work owns; closed if the recovery ends with it.
    """

    job: str
    member: Member
    why: str
    started: float
    udp_port: int
    ring_after: float | None
    on_member: Callable[[Member], None]
    transition: Callable[[RecoveryState, RecoveryEvent], RecoveryState] = after
    state: RecoveryState = RecoveryState.HALTING
    latest: Member = field(init=False)
    before: Member = field(init=False)
    progress: Progress = field(default_factory=Progress)
    event: Event = field(init=False)
    connection: Connection | None = None

    def __post_init__(self) -> None:
        self.latest = self.before = self.member
        self.event = Event(self.started)

    def steps(self) -> Steps[None]:
        """Yield what has to be under way, until the session continues with a switch.

        Raises:
            UnwantedError: nobody wants a switch any more.
            P4ReduceError: the error that ends all calls. If a rank was lost, the ranks that remain
                have agreed on which calls are complete.
        """
        try:
            yield from self._halted()
            try:
                while not (yield from self._found_and_resumed()):
                    pass
            except WorkerLostError as error:
                raise (yield from self._settled(error)) from None
        except UnwantedError:
            self._on(RecoveryEvent.UNWANTED)
            raise
        except P4ReduceError:
            self._on(RecoveryEvent.FAILED)
            raise
        finally:
            self._drop()

    def _on(self, event: RecoveryEvent) -> None:
        self.state = self.transition(self.state, event)

    # -- Waiting -----------------------------------------------------------------------------------

    def _next(self, works: tuple[Work, ...], seconds: float = math.inf) -> Steps[Ended | None]:
        """Have these under way, and return what ends next; None: something else has happened.

        Raises UnwantedError, but while the session takes the switch over, which takes no time.
        """
        if any(_carried(work) is self.connection for work in works):
            self.connection = None
        left = self._deadline() - self.event.now
        if left > 0:
            seconds = min(seconds, left)
        self.event = yield Await(works, min(seconds, _LONGEST_WAIT))
        ended = self.event.ended
        if ended is not None and isinstance(ended.work, OPENING) and ended.error is None:
            self.connection = ended.result
        if self.state is not RecoveryState.RESUMING:
            self._raise_if_unwanted()
        return ended

    def _do(self, work: Work) -> Steps[Any]:
        """Return what one work comes to. Raise what ends the recovery meanwhile."""
        while (ended := (yield from self._next((work,)))) is None:
            if self.state not in (RecoveryState.RESUMING, RecoveryState.SETTLING):
                self._raise_if_rank_lost()
                self._raise_if_late()
        return ended.value()

    def _drop(self) -> None:
        """Close the connection that no work owns."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _raise_if_unwanted(self) -> None:
        if self.event.is_over:
            raise UnwantedError

    def _raise_if_rank_lost(self) -> None:
        if self.event.rank_lost is not None and self.state is not RecoveryState.HALTING:
            raise self.event.rank_lost

    def _deadline(self) -> float:
        """Return when the collective in flight that is due first has no time left.

        A process that was stopped has not waited. Before it says that others are missing, it has to
        hear whether it is missed itself.
        """
        if self.event.due is None:
            return math.inf
        deadline = self.event.due.deadline
        return deadline if deadline > self.started else self.started + _GRACE

    def _raise_if_late(self) -> None:
        """Raise what a collective ends with that has no time left."""
        due, now = self.event.due, self.event.now
        if due is None or self._deadline() > now:
            return
        seconds = now - due.started
        text = (
            f"{due.description} is not complete after {three_digits(seconds)} s: the switch was "
            f"lost {three_digits(now - self.started)} s ago ({self.why}), and this rank cannot "
            f"continue yet: {self.progress.awaited}"
        )
        if self.progress.switch_there:
            raise P4ReduceTimeoutError(text, seconds=seconds)
        raise SwitchUnreachableError(text)

    # -- Steps -------------------------------------------------------------------------------------

    def _halted(self) -> Steps[None]:
        """Let the progress thread end.

        It does so at its next look, a moment later. A stalled machine may keep it from that for
        long: so it has as long as the calls under way have, and no limit of its own.
        """
        self.progress = Progress("this process's own progress thread has not ended", True)
        yield from self._do(HaltEngine())
        self._on(RecoveryEvent.HALTED)

    def _found_and_resumed(self) -> Steps[bool]:
        """Look for a switch, and continue by it. Returns False if it is lost again at once."""
        self.progress = Progress()
        found = yield from self._switch()
        try:
            if isinstance(found, JoinedJob):
                found = yield from self._do(AgreeOnSwitch(found))
                self._on(RecoveryEvent.AGREED)
            yield from self._do(ResumeSession(found))
        except (WorkerLostError, UnwantedError):
            raise
        except P4ReduceError:
            if self.state is RecoveryState.AGREEING:
                self._raise_if_late()
            self._on(RecoveryEvent.FAILED_THERE)
            return False
        self._on(RecoveryEvent.RESUMED)
        return True

    def _switch(self) -> Steps[Found]:
        """Return a switch on which all ranks are, or this one's transport if only that was lost."""
        self._raise_if_unwanted()
        attempt = _Attempt(self._search())
        while True:
            self._raise_if_rank_lost()
            if self._is_ring_due(attempt.found):
                return (yield from self._by_ring(attempt))
            if (found := attempt.found) is not None:
                has_moved = isinstance(found, JoinedJob)
                self._on(RecoveryEvent.FOUND_AGAIN if has_moved else RecoveryEvent.FOUND)
                return found
            self._raise_if_late()
            attempt.go_on()
            if attempt.found is None:
                seconds = attempt.wanted.seconds
                until_ring = self.started + (self.ring_after or 0.0) - self.event.now
                if until_ring > 0:
                    seconds = min(seconds, until_ring)
                yield from self._next(attempt.wanted.works, seconds)

    # -- The search for a switch -------------------------------------------------------------------

    def _search(self) -> Steps[Found]:
        """Look until all ranks are on a switch, or the present one is there.

        Raises P4ReduceError where there is nothing to look for.
        """
        began, unknown_since = self.event.now, math.inf
        while True:
            progress = self.progress
            found: Found | None = None
            try:
                reply = yield from self._result(AskController(self.latest))
                progress.unheard, unknown_since = False, math.inf
                self._raise_if_job_over(reply)
                if reply.state == pb.FAILED:
                    found = yield from self._in_next_life()
                elif self.latest is not self.member or reply.state != pb.RUNNING:
                    found = yield from self._attached()
                elif self._on_ring:
                    # For the controller this job was never without a switch; the ring needs a new
                    # life.
                    found = yield from self._in_next_life()
                else:
                    found = yield from self._transport_again(began)
            except ControlError as error:
                if error.code == grpc.StatusCode.NOT_FOUND and self.latest is not self.before:
                    # The new job gave up on this rank when its way to the switch broke again. By
                    # its membership in the old one it gets its place back.
                    self.latest = self.before
                    self.on_member(self.latest)
                else:
                    unknown_since = min(unknown_since, self.event.now)
                    self._refused(error, self.event.now - unknown_since)
            if found is not None:
                return found
            ends = self.event.now + _PAUSE
            while self.event.now < ends:
                yield Await((), ends - self.event.now)

    def _result(self, work: Work) -> Steps[Any]:
        """Return what one work of the search comes to, whatever happens meanwhile."""
        while True:
            yield Await((work,), math.inf)
            ended = self.event.ended
            if ended is not None and ended.work is work:
                return ended.value()

    def _refused(self, error: ControlError, unknown_for: float) -> None:
        """Remember what is missing. Raises what no further attempt can change."""
        self.progress.awaited = str(error)
        self.progress.unheard |= isinstance(error, NoAnswerError)
        if isinstance(error, NoAnswerError):
            return
        unknown = error.code == grpc.StatusCode.NOT_FOUND and unknown_for > UNKNOWN_FOR
        if unknown or error.code not in _PASSING:
            who = f"rank {self.member.rank} of job {self.job!r}"
            raise translated(error, f"{who} cannot continue")

    def _raise_if_job_over(self, reply: pb.HeartbeatReply) -> None:
        error = why_over(self.job, self.latest, reply)
        if error is not None:
            raise error
        left = tuple(reply.left)
        # When the job is formed again, all ranks leave the old one at once, this one as well.
        if left and self.latest.rank not in left:
            raise WorkerLostError(
                f"job {self.job!r} lost its switch when {describe_ranks(left)} had left already",
                ranks=left,
            )

    def _in_next_life(self) -> Steps[JoinedJob | None]:
        progress = self.progress
        if not progress.all_lost:
            progress.all_lost = True
            progress.awaited = (
                "the controller has no switch yet, or not all ranks have asked for it"
            )
        lost = self.latest
        self.latest = yield from self._result(ReformJob(lost))
        self.before = lost
        progress.switch_there = True
        self.on_member(self.latest)
        return (yield from self._attached())

    def _attached(self) -> Steps[JoinedJob | None]:
        """Enter the latest life, be it forming or running: this rank has no slots in it."""
        progress = self.progress
        try:
            transport = yield from self._result(OpenTransport(0))
            progress.awaited = ALL_RANKS
            joined: JoinedJob = yield from self._result(AttachToSwitch(self.latest, transport))
            return joined
        except ControlError:
            progress.switch_there = False
            raise
        except SwitchUnreachableError as error:
            progress.switch_there, progress.awaited = False, str(error)
            return None

    def _transport_again(self, began: float) -> Steps[PortShare | None]:
        """The job runs: the switch is there, or the controller has not noticed its loss yet."""
        if self.event.now < began + _NOTICED_WITHIN:
            return None
        try:
            transport: PortShare = yield from self._result(OpenTransport(self.udp_port))
        except SwitchUnreachableError as error:
            self.progress.awaited = str(error)
            return None
        if self._on_ring:  # meanwhile
            self._drop()
            return None
        return transport

    # -- With a ring to fall back to ---------------------------------------------------------------

    def _is_ring_due(self, found: Found | None) -> bool:
        """Whether it is time to form the ring.

        Either to reduce by it, or only to agree from where on the switch is used again. With a ring
        to fall back to, a rank does not know whether another one is in it already. A rank that
        alone lost its way to the switch does neither, as the others know of nothing.
        """
        progress = self.progress
        if self.ring_after is None or not (progress.all_lost or progress.unheard):
            return False
        is_late = self.event.now >= self.started + self.ring_after
        return is_late or isinstance(found, JoinedJob)

    @property
    def _on_ring(self) -> bool:
        """Whether the rank reduces by the ring, and never continues in the life that it lost."""
        return self.state is RecoveryState.ON_RING

    def _by_ring(self, attempt: _Attempt) -> Steps[Found]:
        """Reduce by the ring, and return the switch by which all ranks continue."""
        self._on(RecoveryEvent.DUE_ON_RING)
        if attempt.found is not None and not isinstance(attempt.found, JoinedJob):
            # A rank that reduces by the ring is out of step with the life that it lost.
            self._drop()
            attempt = _Attempt(self._search())
        ring = ReduceByRing()
        while True:
            attempt.go_on()
            if isinstance(attempt.found, JoinedJob):
                ring.incarnation = attempt.found.member.incarnation
            # The ring itself looks after the deadlines, as it knows for whom it waits.
            wanted = attempt.wanted
            ended = yield from self._next((ring, *wanted.works), wanted.seconds)
            self._raise_if_rank_lost()
            if ended is not None and ended.work is ring:
                ended.value()
                assert attempt.found is not None
                self._on(RecoveryEvent.RING_AGREED)
                return attempt.found

    # -- After the loss of a rank ------------------------------------------------------------------

    def _settled(self, error: WorkerLostError) -> Steps[WorkerLostError]:
        """Return an error when the remaining ranks have agreed on which collectives are over."""
        self._on(RecoveryEvent.RANK_LOST)
        member = self.latest
        if member.rank in error.ranks:
            return error  # the others agree without this rank
        try:
            yield from self._do(SettleCalls(member))
        except UnwantedError:
            raise
        except (P4ReduceError, ControlError, ClientClosedError) as problem:
            return WorkerLostError(
                f"{error}. The ranks that remain could not settle which collectives are complete: "
                f"those in flight may be complete on some of them ({problem})",
                ranks=error.ranks,
            )
        return error


def why_over(job: str, member: Member, reply: pb.HeartbeatReply) -> P4ReduceError | None:
    """Return the error of an ended job for its ranks, unless it can be recovered.

    None: it has not ended, or only its switch was lost.
    """
    lost = tuple(reply.lost)
    if member.rank in lost:
        if len(lost) == member.world_size:
            text = f"job {job!r} has failed, as all ranks were declared lost (reform() takes it up)"
        else:
            text = (
                f"job {job!r} continues without this rank, rank {member.rank}, which was itself "
                "declared lost"
            )
        return WorkerLostError(f"{text}: {reply.reason}", ranks=lost)
    if lost and reply.cause == pb.CAUSE_SWITCH_LOST:
        # The reason is the switch's. Without these ranks the job cannot continue at the next one.
        were = "was" if len(lost) == 1 else "were"
        return WorkerLostError(
            f"job {job!r} has failed: {describe_ranks(lost)} {were} lost while it had no switch "
            f"({reply.reason})",
            ranks=lost,
        )
    if lost or (reply.state == pb.FAILED and reply.cause == pb.CAUSE_RANK_LOST):
        return WorkerLostError(f"job {job!r} has failed: {reply.reason}", ranks=lost or reply.left)
    if reply.state == pb.FAILED and reply.cause == pb.CAUSE_SWITCH_LOST:
        return None
    if reply.state in (pb.FAILED, pb.ENDED):
        return JobEndedError(f"job {job!r} is over: {reply.reason}")
    return None
