# SPDX-License-Identifier: Apache-2.0
"""A rank's part in a job, from joining to leaving, through losses of switch and controller.

An `Engine` runs the collectives, one per life of the job. When its switch is lost, a `Recovery`
finds the next one, and what is under way continues there.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from p4reduce_common.polling import Backoff

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError
from p4reduce.control.figures import worker_statistics
from p4reduce.errors import (
    ClosedError,
    InterruptedCallError,
    JobEndedError,
    MismatchError,
    P4ReduceError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.latch import Latch, held, unlock
from p4reduce.options import CommunicatorOptions
from p4reduce.ring.fallback import RingSettings
from p4reduce.ring.links import RingNeighbours
from p4reduce.ring.rank_address import RingListener
from p4reduce.session.agreement import ResumeAgreement
from p4reduce.session.disputes import explain, explained, reported
from p4reduce.session.engine import Engine, EngineOwner
from p4reduce.session.heartbeat import BEAT_TIMEOUT, Heartbeat
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.machine import NATIVE, machine_for
from p4reduce.session.port import Connect, PortShare
from p4reduce.session.recovery import why_over
from p4reduce.session.recovery_thread import Recovery
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.statistics import Statistics
from p4reduce.tensors.call_log import CallLog
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.stream import Collective
from p4reduce.thread_failure import ThreadFailedError
from p4reduce.wire.calls import class_slots

log = logging.getLogger(__name__)

_STOP_TIMEOUT = 5.0  # seconds, for each thread
_CLOSE_TIMEOUT = 15.0  # seconds; all that leaving waits for, together
_LINGER_TIMEOUT = 2.0  # seconds that a rank stays for others that lack a result
_LINGER_INTERVALS = Backoff(0.002, 0.05)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # of this process


def fail_all(controller: str, error: P4ReduceError) -> None:
    """End all collectives of this process that depend on a controller's network, with an error."""
    for session in list(_sessions):
        if session.job_client.client.address == controller:
            session.fail(error)


@dataclass(frozen=True)
class SessionSettings:
    """Settings for all lives of a job.

    Attributes:
        connect: opens a transport to the switch.
        options: of the communicator; its slots are asked for, and its timeout bounds a recovery
            without a collective in flight.
        recover: whether to continue after the loss of the switch.
        engine: the kind of engine; see `session.machine`.
        beside_controller: the ranks on the controller's host, if those of the job have started it.
            They count as lost if it does not answer for two leases: their host is down then.
        ring: the ring to fall back to; None: none.
    """

    connect: Connect
    options: CommunicatorOptions
    recover: bool
    engine: str = NATIVE
    beside_controller: tuple[int, ...] = ()
    ring: RingSettings | None = None


class Session:
    """Owns engine, call log, heartbeat and the calls to the controller.

    Made by `joining`; from then on the owner of all that it is given. The listener is for the ring,
    if there is one to fall back to.

    Attributes:
        member: the present membership.
        lease: its length in seconds.
        call_log: its collectives.
        on_break: called when it breaks otherwise than by a collective's end; must not wait.
        on_ring: whether the ranks reduce without a switch for now.
        leaf: the ranks at this rank's own switch, ascending.
        shares_link: as of the transport that it began with.
        origin: bytes that all ranks of the job have and no other job, whatever is lost later.
    """

    def __init__(
        self,
        job_client: JobClient,
        joined: JoinedJob,
        settings: SessionSettings,
        listener: RingListener | None,
    ) -> None:
        self.job_client = job_client
        self.settings = settings
        self.listener = listener
        self.neighbourhood = neighbourhood(joined)
        self.leaf = joined.leaf
        self.shares_link = joined.transport.port.transport.shares_link
        self.origin = self.neighbourhood.secret
        self.on_break: Callable[[], object] = lambda: None
        self.on_ring = False
        self.slots = joined.ready.slot_count
        self.urgent_slots: Sequence[int] = tuple(joined.ready.urgent_slots)
        self.classes = class_slots(self.slots, self.urgent_slots)
        self._lock = threading.RLock()
        self._closing = Latch()
        self._hurried = False
        self._closed = Latch()
        self._error: P4ReduceError | None = None
        self._passed = False  # whether the others settle without this rank: its calls have ended
        self._recovery: Recovery | None = None
        self._lost_frames = 0  # by the kernel, on transports that are gone
        self._recoveries = 0
        self._by_ring = 0
        self.member = joined.member
        self.lease = joined.ready.lease
        self.call_log = CallLog(self._lock)
        self._heartbeat = Heartbeat(self)
        with self._lock:  # a port that breaks at once is reported when there is an engine
            machine = machine_for(joined, settings.engine)
            self._engine_since = time.monotonic()
            self._engine = Engine(machine, joined.transport, self._engine_owner(joined.member))
        self._heartbeat.start()
        _sessions.add(self)

    @property
    def rank(self) -> int:
        return self.member.rank

    @property
    def world_size(self) -> int:
        return self.member.world_size

    @property
    def job(self) -> str:
        return self.job_client.job

    @property
    def broken(self) -> P4ReduceError | None:
        """The error that ends all further calls, or None."""
        return self._error or self._engine.machine.broken

    # -- Collectives -----------------------------------------------------------------------------

    def submit(self, collective: Collective, *, here: bool = False) -> None:
        """Start a collective. Raises the error that broke the session. `here`: see `Engine`."""
        with self._lock:
            if self._closing.is_set():
                raise ClosedError("the communicator is closed")
            if self.broken is not None:
                raise copy.copy(self.broken)
            self.call_log.add(collective)
            if self._recovery is None:
                self._engine.submit(collective, here=here)
            else:
                self._recovery.wake()

    def fail(self, error: P4ReduceError) -> None:
        """End all present and future collectives with an error. The first call counts."""
        if isinstance(error, ThreadFailedError):
            self._heartbeat.leave_soon()
        with self._lock:
            if self.broken is not None:
                return
            self._error = error
            self.on_break()
            if self._recovery is None:
                self._engine.fail(error)
            else:
                self.call_log.fail(error)
                self._recovery.wake()

    def lose_ranks(self, error: WorkerLostError) -> None:
        """End as `fail` does, when the remaining ranks have agreed on what is over."""
        with self._lock:
            if self.broken is not None or self._closing.is_set():
                return
            if self._recovery is None:
                self._recovery = Recovery(self, self._engine, self.member, str(error), error)
            else:
                self._recovery.lose_rank(error)

    @property
    def is_recovering(self) -> bool:
        """Whether it has no switch now, and knows of no lost rank."""
        recovery = self._recovery
        return recovery is not None and not recovery.rank_lost

    def settle(self, timeout: float) -> None:
        """Return when the remaining ranks have agreed on what is over, if a rank was lost.

        Raises:
            ControlError: this rank does not know how its job is, and neither does the controller.
        """
        member = self.member
        try:
            self.on_heartbeat_reply(member, self.send_heartbeat(member, _LINGER_TIMEOUT))
        except ControlError:
            if self.broken is None:
                raise
        except ClientClosedError:
            return
        recovery = self._recovery
        if recovery is not None and recovery.rank_lost:
            recovery.join(timeout)

    def on_interrupted(self, error: InterruptedCallError) -> None:
        """Break the session and leave the job, because an exception left a call of this thread.

        The other ranks may rely on this rank's last call or on its next, so they must not wait for
        it or mistake another call for it. Returns when nothing reads the call's input any more.
        """
        self.unlock()
        if self._closing.is_set() or self.broken is not None:
            return
        self.fail(error)
        engine, recovery = self._engine, self._recovery  # from now on these stay
        if recovery is None:
            engine.abort(error, _STOP_TIMEOUT)
        else:
            recovery.join(_STOP_TIMEOUT)
        self._heartbeat.leave_soon()

    def unlock(self) -> None:
        """Release locks that an exception in this thread has left taken."""
        unlock(self._lock)
        unlock(self._engine.lock)

    def statistics(self) -> Statistics:
        """Return the statistics of all lives of the job."""
        with self._lock:
            figures = self._engine.statistics()
            return replace(
                figures,
                dropped=figures.dropped + self._lost_frames,
                recoveries=self._recoveries,
                by_ring=self._by_ring,
                on_ring=self.on_ring,
            )

    def _engine_owner(self, member: Member) -> EngineOwner:
        """Return what an engine tells that runs this life of the job."""

        def lost(error: SwitchUnreachableError) -> None:
            self._on_switch_lost(member, str(error))

        def disputed(dispute: Dispute) -> None:
            explain(dispute, self.job_client, member, self.fail)

        return EngineOwner(lost if self.settings.recover else None, self.fail, disputed)

    # -- The switch is lost ----------------------------------------------------------------------

    def _on_switch_lost(self, member: Member, why: str) -> None:
        """Look for it. Called by the engine when its transport broke, and by the heartbeat."""
        with self._lock:
            if member is not self.member or self._recovery is not None:
                return
            if self._closing.is_set() or self.broken is not None:
                # The engine may be gone before it has heard of the end.
                self.call_log.fail(self.broken or ClosedError("the communicator was closed"))
                return
            log.warning("%s: %s; looking for the switch", self.job_client.who, why)
            self._recovery = Recovery(self, self._engine, member, why)

    # What follows is for `Recovery`.

    def is_over(self) -> bool:
        """Whether the switch is not needed any more."""
        return self._closing.is_set() or self._error is not None

    def on_member_changed(self, member: Member) -> None:
        """This rank has a membership in the next life of the job."""
        with self._lock:
            self.member = member

    def count_by_ring(self, collectives: int) -> None:
        """Count collectives that the ring has completed."""
        with self._lock:
            self._by_ring += collectives

    def resume(self, found: PortShare | ResumeAgreement) -> None:
        """Continue with a switch, and own what was found, unless this raises.

        It is atomic: a collective that is called meanwhile is among those that have not begun.

        Raises:
            ClosedError: no switch is needed any more.
            SwitchUnreachableError: it is lost at once.
        """
        with self._lock:
            if self.is_over():
                raise ClosedError("the communicator was closed")
            owner = self._engine_owner(self.member)
            before = self._engine.machine
            not_begun = self.call_log.since(before.next_sequence)
            if isinstance(found, PortShare):
                before.resume(time.monotonic())
                engine = Engine(before, found, owner)
            else:
                engine = found.engine
                if not engine.adopt(found.take_over, owner):
                    raise SwitchUnreachableError("the next switch was lost at once")
                self.lease = found.joined.ready.lease
                self.neighbourhood = neighbourhood(found.joined)
                self.leaf = found.joined.leaf
                self._recoveries += 1
            self._lost_frames += self._engine.statistics().dropped
            self._engine = engine
            self._engine_since = time.monotonic()
            self._recovery = None
            for collective in not_begun:
                self._engine.submit(collective)

    def give_up(self, error: P4ReduceError) -> None:
        """Note that there will be no switch."""
        if isinstance(error, MismatchError):  # found in the ring
            calls = reported(self.call_log.in_flight)
            error = explained(error, calls, self.job_client, self.member)
        with self._lock:
            self.fail(error)
            self.call_log.fail(self._error or error)

    # -- Staying ---------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether this rank leaves its job."""
        return self._closing.is_set()

    def leave_job(self) -> None:
        """Give up the membership."""
        self.job_client.leave(self.member, worker_statistics(self.statistics()))

    def send_heartbeat(self, member: Member, timeout: float) -> pb.HeartbeatReply:
        unanswered, heard = (0.0, 0.0) if self._recovery else self._silence()
        return self.job_client.heartbeat(
            member,
            timeout,
            completed=self.call_log.completed,
            unanswered=unanswered,
            heard=heard,
            statistics=worker_statistics(self.statistics()),
        )

    def _silence(self) -> tuple[float, float]:
        """As `Engine.silence`, and also where nothing is asked although something is under way.

        Frames in flight are repeated several times per second. So a lease without any answer means
        that the path is stuck, whatever the engine has sent.
        """
        unanswered, heard = self._engine.silence()
        first = min((one.started for one in self.call_log.in_flight), default=math.inf)
        silent = time.monotonic() - max(first, self._engine_since)
        silent = min(silent, heard or math.inf)
        return max(unanswered, silent if silent > self.lease else 0.0), heard

    def on_heartbeat_reply(self, member: Member, reply: pb.HeartbeatReply) -> None:
        """Act on how the job is."""
        if reply.state == pb.FAILED and self.broken is not None and not self._passed:
            self._passed = True
            with contextlib.suppress(ControlError, ClientClosedError):
                self.job_client.pass_settling(member, BEAT_TIMEOUT * self.lease)
        with self._lock:
            if member is not self.member:
                return
            error = why_over(self.job, member, reply)
            if isinstance(error, WorkerLostError) and member.rank not in error.ranks:
                self.lose_ranks(error)
            elif error is not None:
                self.fail(error)
            elif reply.state == pb.FAILED:
                if self.settings.recover:
                    self._on_switch_lost(member, reply.reason)
                else:
                    self.fail(JobEndedError(f"job {self.job!r} is over: {reply.reason}"))
            elif reply.left:
                self._engine.ranks_left(tuple(reply.left))

    # -- Leaving ---------------------------------------------------------------------------------

    def linger(self) -> None:
        """Wait until all ranks have the results that this one has, for a bounded time.

        If the switch were lost before that, the others would need this rank to get them again. It
        waits for two seconds at most: a rank that lacks a result for longer hangs. During a
        recovery it waits as long as that may take.
        """
        if not self.settings.recover:
            return
        start = time.monotonic()
        intervals = iter(_LINGER_INTERVALS)
        while not (self._hurried or self.is_over() or self.broken is not None):
            waited = time.monotonic() - start
            if waited > (
                _LINGER_TIMEOUT if self._recovery is None else self.settings.options.timeout
            ):
                return
            try:
                reply = self.send_heartbeat(self.member, _LINGER_TIMEOUT)
            except (ControlError, ClientClosedError):
                return
            if reply.completed_by_all >= self.call_log.completed:
                return
            if reply.state != pb.RUNNING and self._recovery is None:
                self.on_heartbeat_reply(self.member, reply)
            self._closing.wait(next(intervals))

    def close(self, *, linger: bool = False) -> None:
        """Stop, and leave the job. Collectives in flight end with `ClosedError`. Idempotent.

        `linger`: first wait until the others do not need this rank. An exception meanwhile ends
        that wait; leaving continues.
        """
        if held(self._lock):
            # By a signal handler, within a call of this thread, which cannot continue before.
            self._leave()
            return

        def leave() -> None:
            if linger:
                self.linger()
            self._leave()

        ThreadedCall(leave, cancel=self.stop_lingering)()

    def abandon(self) -> None:
        """As `close`, but in this thread: at the interpreter's end there can be no other."""
        if not self._closing.is_set():
            self._leave()

    def stop_lingering(self) -> None:
        """Make `linger` return."""
        self._hurried = True

    def _leave(self) -> None:
        with self._lock:
            first = not self._closing.is_set()
            self._closing.set()
            self._heartbeat.stop()
        if not first:
            self._closed.wait(_CLOSE_TIMEOUT)
            return
        try:
            self._stop()
            self.leave_job()
            self.job_client.close()
            if self.listener is not None:
                self.listener.close()
            self._heartbeat.join(_STOP_TIMEOUT)
        finally:
            self._closed.set()

    def stop(self) -> Member:
        """Stop computing, and return the membership. Its lease is still renewed.

        Collectives in flight end with the session's error, or with `ClosedError`.
        """
        with self._lock:
            if self._closing.is_set():
                raise ClosedError("the communicator is closed")
            self.fail(ClosedError("the communicator is being formed again"))
        self._stop()
        return self.member

    def hand_over(self) -> None:
        """Release membership and listener to another session."""
        self._closing.set()
        self._heartbeat.stop()
        self._heartbeat.join(_STOP_TIMEOUT)
        self._closed.set()

    def _stop(self) -> None:
        with self._lock:
            recovery, engine = self._recovery, self._engine
        if recovery is not None:
            recovery.wake()
            recovery.join(_STOP_TIMEOUT)
        engine.stop(_STOP_TIMEOUT)
        with self._lock:
            self.call_log.fail(self.broken or ClosedError("the communicator was closed"))


def neighbourhood(joined: JoinedJob) -> RingNeighbours:
    """Return the ranks of a job as a ring knows them."""
    member, ready = joined.member, joined.ready
    return RingNeighbours(
        member.incarnation, member.rank, tuple(ready.ring_addresses), ready.secret
    )
