# SPDX-License-Identifier: Apache-2.0
"""Looks for a switch after a loss: asks the controller, forms the job again, attaches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError, NoAnswerError
from p4reduce.errors import (
    JobEndedError,
    P4ReduceError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.session.engine import Engine
from p4reduce.session.job_client import JobClient, JoinedJob, Member, translated
from p4reduce.session.port import PortShare
from p4reduce.thread_failure import ThreadFailedError
from p4reduce.wire.rank_sets import describe_ranks

log = logging.getLogger(__name__)

Connect = Callable[[int], PortShare]
"""Opens the way to the switch, with a UDP port of one's own, or 0 for any."""

UNKNOWN_FOR = 5.0  # seconds for which a restarted controller may not know the job
_PAUSE = 0.05  # seconds between two attempts
NOTICED_WITHIN = 0.25  # seconds for the controller to notice what this rank has noticed
_ASK_TIMEOUT = 2.0
_REFORM_TIMEOUT = 2.0  # then the answer names those who are missing, and is asked for again
_ATTACH_TIMEOUT = 60.0
_ALL_RANKS = "not all ranks have reached the switch again"

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


@dataclass(frozen=True)
class Reconnection:
    """A transport to a switch that was found.

    Attributes:
        transport: the taker closes it.
        joined: this rank's place in the next life of the job; None: the same life, and
            only the transport had broken.
        engine: that has the transport; None: one must be made.
        take_over: lets that engine's thread continue with all that was under way.
    """

    transport: PortShare
    joined: JoinedJob | None
    engine: Engine | None = None
    take_over: Callable[[], None] = lambda: None


@dataclass
class JobIncarnations:
    """The lives of its job that matter to a rank without a switch.

    It outlasts a `Reconnector`: the next one continues with it.

    Attributes:
        life: the membership in the life that the present slots belong to. Only in that life can
            they continue over another transport; a later one has fresh slots. None: no life.
        member: the one in the latest life.
        before: the one in the life before, which gets the rank a place in the latest again.
    """

    life: Member | None
    member: Member
    before: Member

    @classmethod
    def of_engine(cls, member: Member) -> JobIncarnations:
        """Return the lives of a rank whose engine has lost its transport."""
        return cls(member, member, member)

    @classmethod
    def of_newcomer(cls, member: Member) -> JobIncarnations:
        """Return the lives of a rank that has run nothing in the life of that membership."""
        return cls(None, member, member)


class _CancelledError(Exception):
    pass


class Reconnector:
    """Seeks in a thread, until it finds a switch, is cancelled, or cannot succeed.

    Attributes:
        awaited: why it cannot continue yet, as a clause for people.
        switch_there: whether it waits for something else than the switch.
        all_lost: whether the whole job has lost the switch, not only this rank.
        unheard: whether the controller does not answer.
        by_ring: whether the rank reduces by the ring, and never continues in the life that it lost.
        found: the result.
        failed: why it cannot succeed, or None.

    Args:
        job_client: for the calls.
        incarnations: of the job that lost its switch; updated with memberships.
        udp_port: of the former transport; 0 if it had none.
        connect: opens a transport.
        completed: the number of the first collective whose result this rank lacks.
        moved: called with each new membership.
        over: called when `found` or `failed` is set.
    """

    def __init__(
        self,
        job_client: JobClient,
        incarnations: JobIncarnations,
        udp_port: int,
        connect: Connect,
        completed: int,
        moved: Callable[[Member], None],
        over: Callable[[], None],
    ) -> None:
        self.awaited = "the controller has not said yet how the job is"
        self.switch_there = False
        self.all_lost = False
        self.unheard = self.by_ring = False
        self.found: Reconnection | None = None
        self.failed: P4ReduceError | None = None
        self._job_client = job_client
        self._incarnations = incarnations
        self._udp_port = udp_port
        self._connect = connect
        self._completed = completed
        self._moved = moved
        self._over = over
        self._cancelled = threading.Event()
        self._started = time.monotonic()
        self._unknown_since: float | None = None
        self._lock = threading.Lock()  # held while what is found meets `by_ring`
        self._thread = self._new_thread()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def go_by_ring(self) -> None:
        """Look for a new life alone from now on; also if the one that was lost is found already."""
        with self._lock:
            self.by_ring, found = True, self.found
            if found is None or found.joined is not None:
                return
            self.found = None
        found.transport.close()
        self._thread = self._new_thread()  # the one before ends with what it found
        self._thread.start()

    def _new_thread(self) -> threading.Thread:
        return new_thread(self._run, f"p4reduce-seek-{self._incarnations.member.rank}")

    def cancel(self, timeout: float) -> None:
        """Stop seeking. A result that was not taken is closed."""
        self._cancelled.set()
        self._thread.join(timeout)
        if (found := self.take()) is not None:
            found.transport.close()

    @property
    def incarnation(self) -> int:
        """The incarnation for which the switch can be used; 0: none yet, or the lost one."""
        found = self.found
        joined = None if found is None else found.joined
        return 0 if joined is None else joined.member.incarnation

    def take(self) -> Reconnection | None:
        """Return the result, which the caller then owns."""
        found, self.found = self.found, None
        return found

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._step():
                if self._cancelled.wait(_PAUSE):
                    return
        except _CancelledError:
            return
        except P4ReduceError as error:
            self.failed = error
        except Exception as error:
            self.failed = ThreadFailedError.of(f"looking for the switch failed: {error!r}", error)
            log.exception("%s: looking for the switch failed", self._job_client.who)
        self._over()

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError

    def _step(self) -> bool:
        """Do what the state of the job asks for. Return whether a way was found.

        `found` does not tell: somebody may have taken it already.
        """
        incarnations = self._incarnations
        try:
            reply = self._job_client.heartbeat(
                incarnations.member, _ASK_TIMEOUT, completed=self._completed
            )
        except ControlError as error:
            if (
                error.code == grpc.StatusCode.NOT_FOUND
                and incarnations.member is not incarnations.before
            ):
                # The new job gave up on this rank when its way to the switch broke again. By its
                # membership in the old one it gets its place back.
                incarnations.member = incarnations.before
                self._moved(incarnations.member)
                return False
            self._refused(error)
            return False
        self._unknown_since = None
        self.unheard = False
        self._raise_if_over(reply)
        if reply.state == pb.FAILED:
            return self._reform()
        if incarnations.member is not incarnations.life or reply.state != pb.RUNNING:
            return self._attach()
        # For the controller this job was never without a switch; on the ring it needs a new one.
        return self._reform() if self.by_ring else self._reconnect()

    def _refused(self, error: ControlError) -> None:
        """Remember what is missing. Raises what no further attempt can change."""
        self.awaited = str(error)
        if isinstance(error, NoAnswerError):
            self.unheard = True
            return
        if error.code not in _PASSING:
            raise translated(error, f"{self._job_client.who} cannot continue")
        if error.code == grpc.StatusCode.NOT_FOUND:
            now = time.monotonic()
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since > UNKNOWN_FOR:
                raise translated(error, f"{self._job_client.who} cannot continue")

    def _raise_if_over(self, reply: pb.HeartbeatReply) -> None:
        member = self._incarnations.member
        error = why_over(self._job_client.job, member, reply)
        if error is not None:
            raise error
        left = tuple(reply.left)
        # When the job is formed again, all ranks leave the old one at once, this one as well.
        if left and member.rank not in left:
            raise WorkerLostError(
                f"job {self._job_client.job!r} lost its switch when {describe_ranks(left)} had "
                "left already",
                ranks=left,
            )

    def _reform(self) -> bool:
        if not self.all_lost:
            self.awaited = "the controller has no switch yet, or not all ranks have asked for it"
            self.all_lost = True
        incarnations, before = self._incarnations, self._incarnations.member
        try:
            incarnations.member = self._job_client.reform(
                before,
                world_size=before.world_size,
                completed=self._completed,
                intact=True,
                timeout=_REFORM_TIMEOUT,
                check=self._check,
            )
        except ControlError as error:
            self._refused(error)
            return False
        incarnations.before = before
        self.switch_there = True
        self._moved(incarnations.member)
        return self._attach()

    def _attach(self) -> bool:
        """Enter the latest life, be it forming or running: none of this rank has run in it."""
        incarnations = self._incarnations
        opened = self._open(0)
        if opened is None:
            return False
        self.awaited = _ALL_RANKS
        try:
            joined = self._job_client.attach(
                incarnations.member, opened, _ATTACH_TIMEOUT, self._check, self._open_again
            )
        except (ControlError, SwitchUnreachableError) as error:
            self.switch_there = False
            if isinstance(error, ControlError):
                self._refused(error)
            else:
                self.awaited = str(error)
            return False
        self.found = Reconnection(joined.transport, joined)
        return True

    def _open_again(self) -> PortShare:
        opened = self._open(0)
        if opened is None:
            raise SwitchUnreachableError(self.awaited)
        self.awaited = _ALL_RANKS
        return opened

    def _reconnect(self) -> bool:
        """The job runs: the switch is there, or the controller has not noticed its loss yet."""
        if time.monotonic() < self._started + NOTICED_WITHIN:
            return False
        transport = self._open(self._udp_port)
        if transport is None:
            return False
        with self._lock:
            if not self.by_ring:
                self.found = Reconnection(transport, None)
                return True
        transport.close()
        return False

    def _open(self, udp_port: int) -> PortShare | None:
        try:
            return self._connect(udp_port)
        except SwitchUnreachableError as error:
            self.awaited = str(error)
            return None


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
    if lost:
        return WorkerLostError(f"job {job!r} has failed: {reply.reason}", ranks=lost)
    if reply.state == pb.FAILED and reply.cause == pb.CAUSE_SWITCH_LOST:
        return None
    if reply.state == pb.FAILED and reply.cause == pb.CAUSE_RANK_LOST:
        return WorkerLostError(f"job {job!r} has failed: {reply.reason}", ranks=reply.left)
    if reply.state in (pb.FAILED, pb.ENDED):
        return JobEndedError(f"job {job!r} is over: {reply.reason}")
    return None
