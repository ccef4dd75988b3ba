# SPDX-License-Identifier: Apache-2.0
"""The thread that takes the steps of a `RecoveryProtocol`, and the threads of what is under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from p4reduce_common.figures import three_digits
from p4reduce_common.threads import new_thread

from p4reduce.errors import (
    ClosedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.latch import Latch
from p4reduce.ring.fallback import RingRun
from p4reduce.session.agreement import ResumeAgreement
from p4reduce.session.engine import Engine
from p4reduce.session.job_client import JoinedJob, Member
from p4reduce.session.machine import machine_for
from p4reduce.session.port import PortShare
from p4reduce.session.recovery import (
    ALL_RANKS,
    AgreeOnSwitch,
    AskController,
    AttachToSwitch,
    Await,
    Connection,
    Ended,
    Event,
    HaltEngine,
    OpenTransport,
    RecoveryProtocol,
    RecoveryState,
    ReduceByRing,
    ReformJob,
    ResumeSession,
    SettleCalls,
    UnwantedError,
    Work,
)
from p4reduce.session.settling import settle_calls
from p4reduce.session.waiting import Waiting
from p4reduce.tensors.stream import Collective
from p4reduce.thread_failure import ThreadFailedError

if TYPE_CHECKING:
    from p4reduce.session.session import Session

log = logging.getLogger(__name__)

_HALT_LOOK = 0.2  # seconds between two looks at whether anybody still waits for it
_CANCEL_TIMEOUT = 5.0  # seconds; the longest call to the controller takes two
_ASK_TIMEOUT = 2.0
_REFORM_TIMEOUT = 2.0  # then the answer names those who are missing, and is asked for again
_ATTACH_TIMEOUT = 60.0
_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_SETTLE = 2.0  # leases for the ranks that remain to agree; within one they know of the loss
_SETTLE_MARGIN = 5.0  # seconds more

Check = Callable[[], None]
"""Raises an error when its work is not wanted any more."""


class Recovery:
    """Recovers a session once, in a thread.

    Args:
        session: has lost its switch, or a rank.
        engine: the one that ran.
        member: in that life of the job.
        why: the reason of the loss, for people.
        rank_lost: what it ends with, if a rank was lost; None: the switch was.
    """

    def __init__(
        self,
        session: Session,
        engine: Engine,
        member: Member,
        why: str,
        rank_lost: WorkerLostError | None = None,
    ) -> None:
        self._session = session
        self._engine = engine
        self._rank_lost = rank_lost
        self._who = session.job_client.who
        self._protocol = RecoveryProtocol(
            session.job,
            member,
            why,
            time.monotonic(),
            engine.udp_port,
            None if session.settings.ring is None else session.settings.ring.after,
            session.on_member_changed,
        )
        self._changed = Latch()
        self._ended: deque[Ended] = deque()
        self._in_flight: dict[Work, threading.Thread] = {}
        self._cancelled: dict[Work, P4ReduceError] = {}  # and why
        self._lock = threading.Lock()  # held where the end of a work meets its cancellation
        self._ring: RingRun | None = None
        self._thread = new_thread(self._run, f"p4reduce-recover-{member.rank}")
        self._thread.start()

    def wake(self) -> None:
        """Note that the session is over, or that there are further collectives."""
        self._changed.set()

    @property
    def rank_lost(self) -> bool:
        """Whether it ends because a rank was lost."""
        return self._rank_lost is not None or self._protocol.state is RecoveryState.SETTLING

    def lose_rank(self, error: WorkerLostError) -> None:
        """End with an error because a rank was lost, after the ranks that remain have agreed."""
        self._rank_lost = self._rank_lost or error
        self.wake()

    def join(self, timeout: float) -> None:
        """Return when it has ended, or after `timeout` seconds."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._take_steps()
        except UnwantedError:
            pass
        except P4ReduceError as error:
            self._session.give_up(error)
        except BaseException as problem:
            failed = ThreadFailedError.of(f"recovering failed: {problem!r}", problem)
            self._session.give_up(failed)
            raise

    def _take_steps(self) -> None:
        steps = self._protocol.steps()
        reason: P4ReduceError | None = None
        try:
            wanted = next(steps)
            while True:
                self._have(wanted)
                wanted = steps.send(self._next_event(wanted.seconds))
        except StopIteration:
            pass
        except UnwantedError:
            raise
        except P4ReduceError as error:
            reason = error
            raise
        finally:
            self._have(Await((), 0.0), reason)
            steps.close()
            for ended in self._ended:  # that it did not come to
                _release(ended.result)

    def _have(self, wanted: Await, reason: P4ReduceError | None = None) -> None:
        """Have under way what is wanted, and nothing else."""
        reason = reason or self._rank_lost or self._session.broken
        for work in [work for work in self._in_flight if work not in wanted.works]:
            with self._lock:
                self._cancelled[work] = reason or ClosedError("the communicator was closed")
            self._in_flight.pop(work).join(_CANCEL_TIMEOUT)
        for work in wanted.works:
            if work not in self._in_flight:
                name = f"{self._thread.name}-{type(work).__name__}"
                thread = new_thread(self._work, name, args=(work,))
                thread.start()
                self._in_flight[work] = thread
        if (ring := self._ring) is not None:
            ring.wake()

    def _next_event(self, seconds: float) -> Event:
        if not self._ended:
            self._changed.wait(seconds)
        self._changed.clear()
        ended = self._ended.popleft() if self._ended else None
        if ended is not None:
            self._in_flight.pop(ended.work, None)
        session = self._session
        return Event(time.monotonic(), session.is_over(), self._rank_lost, self._due(), ended)

    def _due(self) -> Collective | None:
        return min(self._session.call_log.in_flight, key=lambda one: one.deadline, default=None)

    # -- In a thread for each work -----------------------------------------------------------------

    def _work(self, work: Work) -> None:
        """Do it, and tell its end. If it was cancelled before, close what it has opened."""

        def check() -> None:
            if work in self._cancelled:
                raise self._cancelled[work]

        try:
            ended = Ended(work, self._do(work, check))
        except BaseException as error:
            ended = Ended(work, error=error)
        with self._lock:
            if work not in self._cancelled:
                self._ended.append(ended)
                self._changed.set()
                return
        _release(ended.result)

    def _do(self, work: Work, check: Check) -> Any:
        """Return the result of a work."""
        session = self._session
        completed, machine = session.call_log.completed, self._engine.machine
        match work:
            case HaltEngine():
                return self._halt(check)
            case AskController():
                return session.job_client.heartbeat(work.member, _ASK_TIMEOUT, completed=completed)
            case ReformJob():
                return session.job_client.reform(
                    work.member,
                    world_size=work.member.world_size,
                    completed=completed,
                    intact=True,
                    timeout=_REFORM_TIMEOUT,
                    check=check,
                )
            case OpenTransport():
                return session.settings.connect(work.udp_port)
            case AttachToSwitch():
                return self._attach(work, check)
            case AgreeOnSwitch():
                return self._agree(work, check)
            case ReduceByRing():
                return self._reduce_by_ring(work, check)
            case SettleCalls():
                deadline = time.monotonic() + _SETTLE * session.lease + _SETTLE_MARGIN
                waiting = Waiting(self._who, deadline, Latch(), check)
                return settle_calls(session.job_client, work.member, machine, waiting)
            case ResumeSession():
                log.warning(
                    "%s: back on the switch %.3g s after it was lost", self._who, self._seconds()
                )
                try:
                    return session.resume(work.found)
                except BaseException:
                    work.found.close()
                    raise

    def _seconds(self) -> float:
        return time.monotonic() - self._protocol.started

    def _halt(self, check: Check) -> None:
        machine = self._engine.machine
        while not self._engine.halt(_HALT_LOOK):
            check()
        while machine.in_dispute:  # it ends soon, and all calls with it
            check()
            time.sleep(_HALT_LOOK)
        if machine.broken is not None:
            raise machine.broken

    def _attach(self, work: AttachToSwitch, check: Check) -> JoinedJob:
        connect, progress = self._session.settings.connect, self._protocol.progress

        def reopen() -> PortShare:
            try:
                opened = connect(0)
            except SwitchUnreachableError as error:
                progress.awaited = str(error)
                raise
            progress.awaited = ALL_RANKS
            return opened

        return self._session.job_client.attach(
            work.member, work.transport, _ATTACH_TIMEOUT, check, reopen
        )

    def _agree(self, work: AgreeOnSwitch, check: Check) -> ResumeAgreement:
        session, joined = self._session, work.joined
        opened: JoinedJob | ResumeAgreement = joined
        try:
            fresh = machine_for(joined, session.settings.engine)
            opened = agreement = ResumeAgreement(
                session.job_client, joined, fresh, self._engine.machine
            )
            agreement.reach(check)
        except BaseException as error:
            opened.close()
            log.info("%s: %s", self._who, error)
            raise
        return agreement

    def _reduce_by_ring(self, work: ReduceByRing, check: Check) -> None:
        session = self._session
        assert session.listener is not None
        if not work.incarnation:
            log.warning(
                "%s: there has been no switch for %.3g s; continuing with a ring of TCP "
                "connections among the ranks",
                self._who,
                self._seconds(),
            )
            session.on_ring = True
        self._ring = RingRun(
            self._engine.machine,
            session.call_log,
            session.count_by_ring,
            who=session.neighbourhood,
            listener=session.listener,
            back=lambda: work.incarnation,
            left=lambda what, rank: self._left_in_ring(check, what, rank),
        )
        try:
            self._ring.run()
        finally:
            self._ring = None
            session.on_ring = False

    def _left_in_ring(self, check: Check, what: str, rank: int | None) -> float:
        """Return how long may be waited. Raises what the ring ends with."""
        check()
        now, due = time.monotonic(), self._due()
        if due is None:
            return _LONGEST_WAIT
        if due.deadline > now:
            return due.deadline - now
        seconds = now - due.started
        raise P4ReduceTimeoutError(
            f"{due.description} is not complete after {three_digits(seconds)} s: the switch was "
            f"lost {three_digits(self._seconds())} s ago, and this waits for {what}",
            missing=() if rank is None else (rank,),
            seconds=seconds,
        )


def _release(result: object) -> None:
    """Close what a work has opened for nobody."""
    if isinstance(result, Connection):
        result.close()
