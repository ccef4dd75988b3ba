# SPDX-License-Identifier: Apache-2.0
"""After the loss of a switch or a rank: what a rank waits for, and until which deadline."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError
from p4reduce.errors import (
    ClosedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.latch import Latch
from p4reduce.ring.fallback import Fallback, RingRun
from p4reduce.ring.links import RingNeighbours
from p4reduce.session.agreement import ResumeAgreement
from p4reduce.session.engine import Engine
from p4reduce.session.fallback_switches import (
    FallbackMembership,
    FallbackSwitches,
    leave_behind,
    move,
)
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.machine import Machine
from p4reduce.session.reconnector import Connect, JobIncarnations, Reconnection, Reconnector
from p4reduce.session.recovery_states import RecoveryEvent, RecoveryState, after
from p4reduce.session.settling import Settling
from p4reduce.tensors.call_log import CallLog
from p4reduce.tensors.stream import Collective
from p4reduce.thread_failure import ThreadFailedError

log = logging.getLogger(__name__)

_HALT_LOOK = 0.2  # seconds between two looks at whether anybody still waits for it
_CANCEL_TIMEOUT = 5.0  # seconds; the longest call of a reconnector takes two
_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_FALLBACK_PAUSE = 0.2  # seconds between two looks at whether another switch is there
HOME_AGAIN = 1.0  # seconds, after an attempt to go elsewhere was without success
LOOK_HOME = 0.5  # seconds between two looks at whether the job continues at home
_LOOK_TIMEOUT = 1.0
_RING_PAUSE = 0.2  # seconds between two looks at whether all have lost the switch


class RecoveryHandler(Protocol):
    """The owner of the switch's job. Calls may come from any thread."""

    job_client: JobClient
    call_log: CallLog
    fallback: Fallback | None
    neighbourhood: RingNeighbours
    fallback_switches: FallbackSwitches | None
    home: int
    slots: int
    urgent_slots: Sequence[int]

    @property
    def settle_within(self) -> float:
        """Seconds that the ranks that remain have to agree after the loss of a rank."""

    @property
    def connect(self) -> Connect:
        """Opens a transport to the job's last switch."""

    @property
    def broken(self) -> P4ReduceError | None:
        """The error that ends all further calls, or None."""

    def is_over(self) -> bool:
        """Whether no switch is needed any more."""

    def on_halted(self) -> None:
        """The old engine has ended."""

    def on_member_changed(self, member: Member) -> None:
        """This rank has a new membership."""

    def on_switch_changed(self, taken: FallbackMembership) -> None:
        """This rank has a membership at another switch."""

    def on_fallback_failed(self) -> None:
        """The job at the other switch has failed."""

    def machine(self, joined: JoinedJob) -> Machine:
        """Return a fresh machine for a life of the job."""

    def without_switch(self, ring: bool) -> None:
        """Whether the ranks reduce without a switch for now."""

    def reduced_by_ring(self, collectives: int) -> None:
        """Count those that are over."""

    def resume(self, found: Reconnection, before: Machine) -> None:
        """Continue, because this recovery is over. Raises P4ReduceError."""

    def give_up(self, error: P4ReduceError) -> None:
        """End with an error, because recovery is impossible."""


class _OverError(P4ReduceError):
    """No switch is wanted any more."""


class Recovery:
    """Runs in a thread, once for each loss.

    It ends when there is a switch, a collective reaches its deadline, a rank is lost, or it is
    stopped. At a deadline all collectives end with an error that says what was waited for.
    `recovery_states` has its states and transitions.

    Attributes:
        state: the present one.

    Args:
        host: the owner of the job.
        engine: that has lost its switch.
        member: in that life of the job.
        why: the reason of the loss, for people.
        rank_lost: what it ends with, if a rank was lost; None: the switch was.
    """

    def __init__(
        self,
        host: RecoveryHandler,
        engine: Engine,
        member: Member,
        why: str,
        rank_lost: WorkerLostError | None = None,
    ) -> None:
        self.state = RecoveryState.HALTING
        self._rank_lost = rank_lost
        self._why = why
        self._host = host
        self._engine = engine
        self._incarnations = JobIncarnations.of_engine(member)
        self._awaited = ""
        self._switch_there = False
        self._without_switch = False  # without a membership in any job
        self._look_home_at = 0.0  # when it is looked again whether the job continues at home
        self._started = time.monotonic()
        others = host.fallback_switches
        self._home_until = math.inf if others is None else self._started + others.after
        self._changed = Latch()
        self._ring: RingRun | None = None
        self._thread = new_thread(self._run, f"p4reduce-recover-{member.rank}")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Note that the host is over, or that there are further collectives."""
        self._changed.set()
        if (ring := self._ring) is not None:
            ring.wake()

    @property
    def rank_lost(self) -> bool:
        """Whether it ends because a rank was lost."""
        return self._rank_lost is not None

    def lose_rank(self, error: WorkerLostError) -> None:
        """End with an error because a rank was lost, after the ranks that remain have agreed."""
        self._rank_lost = self._rank_lost or error
        self.wake()

    def stop(self, timeout: float) -> None:
        """Return when it has ended. The host must be over."""
        self.wake()
        self.join(timeout)

    def join(self, timeout: float) -> None:
        """Return when it has ended, or after `timeout` seconds."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            machine = self._halt()
            self._host.on_halted()
            self._on(RecoveryEvent.HALTED)
            try:
                self._recover(machine)
            except WorkerLostError as error:
                self._rank_lost = error
                raise self._settled(error, machine) from None
        except _OverError:
            self._on(RecoveryEvent.UNWANTED)
        except P4ReduceError as error:
            self._on(RecoveryEvent.FAILED)
            self._host.give_up(error)
        except BaseException as problem:
            self._host.give_up(ThreadFailedError.of(f"recovering failed: {problem!r}", problem))
            raise

    def _recover(self, machine: Machine) -> None:
        self._raise_if_rank_lost()
        while not self._at_home(machine):
            if self._host.fallback_switches is not None and self._at_fallback(machine):
                break

    def _settled(self, error: WorkerLostError, machine: Machine) -> WorkerLostError:
        """Return an error when the remaining ranks have agreed on which collectives are over."""
        self._on(RecoveryEvent.RANK_LOST)
        if self._incarnations.member.rank in error.ranks:
            return error  # the others agree without this rank
        settling = Settling(
            self._host.job_client,
            self._incarnations.member,
            machine,
            self._host.settle_within,
            self._check_wanted,
        )
        try:
            settling.run()
        except _OverError:
            raise
        except (P4ReduceError, ControlError, ClientClosedError) as problem:
            return WorkerLostError(
                f"{error}. The ranks that remain could not settle which collectives are complete: "
                f"those in flight may be complete on some of them ({problem})",
                ranks=error.ranks,
            )
        return error

    def _raise_if_rank_lost(self) -> None:
        if self._rank_lost is not None:
            raise self._rank_lost

    def _check_wanted(self) -> None:
        if self._host.is_over():
            raise _OverError

    def _on(self, event: RecoveryEvent) -> None:
        self.state = after(self.state, event)

    def _halt(self) -> Machine:
        """Return what the progress thread ran, when that thread has ended.

        It does so at its next look, a moment later. A stalled machine may keep it from that for
        long: so it has as long as the calls under way have, and no limit of its own.
        """
        self._awaited, self._switch_there = "this process's own progress thread has not ended", True
        while (machine := self._try_halt()) is None:
            self._check_time()
        while machine.in_dispute:  # it ends soon, and all calls with it
            self._check_time()
            time.sleep(_HALT_LOOK)
        self._awaited, self._switch_there = "", False
        if machine.broken is not None:
            raise machine.broken
        return machine

    def _try_halt(self) -> Machine | None:
        try:
            return self._engine.halt(_HALT_LOOK)
        except P4ReduceTimeoutError:
            return None

    def _at_home(self, machine: Machine) -> bool:
        """Look for the switch that was lost. Returns False when it is time to look elsewhere."""
        if self._without_switch:
            return False
        reconnector = Reconnector(
            self._host.job_client,
            self._incarnations,
            0 if self._incarnations.life is None else self._engine.udp_port,
            self._host.connect,
            self._host.call_log.completed,
            self._host.on_member_changed,
            self.wake,
        )
        reconnector.start()
        try:
            return self._await(reconnector, machine)
        finally:
            reconnector.cancel(_CANCEL_TIMEOUT)

    def _await(self, reconnector: Reconnector, machine: Machine) -> bool:
        while not self._host.is_over():
            self._changed.clear()
            self._raise_if_rank_lost()
            if self._must_agree(reconnector):
                self._on(RecoveryEvent.DUE_ON_RING)
                return self._by_ring(reconnector, machine)
            # Before it is time to go elsewhere: the others may be back on it as well.
            if (found := reconnector.take()) is not None:
                if found.joined is None:
                    self._on(RecoveryEvent.FOUND)
                    self._resume(found, machine)
                    return True
                self._on(RecoveryEvent.FOUND_AGAIN)
                return self._agree(self._host.job_client, found.joined, machine)
            due_at_fallback = self._due_at_fallback(reconnector)
            if due_at_fallback <= 0:
                return False
            if reconnector.failed is not None:
                raise reconnector.failed
            self._awaited, self._switch_there = reconnector.awaited, reconnector.switch_there
            self._changed.wait(min(self._until_deadline(), due_at_fallback))
        raise _OverError

    def _resume(self, found: Reconnection, machine: Machine) -> None:
        log.warning(
            "%s: back on the switch %.3g s after it was lost",
            self._host.job_client.who,
            time.monotonic() - self._started,
        )
        self._host.resume(found, machine)
        self._on(RecoveryEvent.RESUMED)

    def _until_deadline(self) -> float:
        """Return how long may be waited. Raises what a collective ends with that has no time."""
        now = time.monotonic()
        left = _LONGEST_WAIT
        if self._host.fallback is not None:
            # Check again whether the ring may take over now.
            due = self._started + self._host.fallback.after
            left = due - now if due > now else _RING_PAUSE
        due_first = self._due_first()
        if due_first is None:
            return left
        if due_first.deadline > now:
            return min(due_first.deadline - now, left)
        seconds = now - due_first.started
        text = (
            f"{due_first.description} is not complete after {seconds:.3g} s: the switch was lost "
            f"{now - self._started:.3g} s ago ({self._why}), and this rank cannot continue yet: "
            f"{self._awaited}"
        )
        if self._switch_there:
            raise P4ReduceTimeoutError(text, seconds=seconds)
        raise SwitchUnreachableError(text)

    def _due_first(self) -> Collective | None:
        return min(self._host.call_log.in_flight, key=lambda one: one.deadline, default=None)

    # -- At another switch -------------------------------------------------------------------------

    def _due_at_fallback(self, reconnector: Reconnector) -> float:
        """Return in how many seconds it is time to go to another switch; 0: now."""
        others = self._host.fallback_switches
        if others is None:
            return _LONGEST_WAIT
        # What the job at the lost switch ended with does not count, if others are there.
        failed = reconnector.failed is not None
        left = 0.0 if failed else self._home_until - time.monotonic()
        if left > 0:
            return left
        if others.candidates(self._host.home, without_switch=self._without_switch):
            return 0.0
        return _LONGEST_WAIT if failed else _FALLBACK_PAUSE

    def _at_fallback(self, machine: Machine) -> bool:
        """Try the other switches. Returns False if none works for now."""
        self._on(RecoveryEvent.DUE_AT_FALLBACK)
        host, others = self._host, self._host.fallback_switches
        assert others is not None
        for at in others.candidates(host.home, without_switch=self._without_switch):
            self._awaited = f"not all ranks are at the next switch, as job {others.name(at)!r}"
            self._switch_there = True
            self._look_home_at = 0.0
            try:
                taken = move(
                    others,
                    at,
                    self._incarnations.member,
                    host.job_client.place,
                    host.slots,
                    host.urgent_slots,
                    self._check_fallback,
                )
            except (WorkerLostError, _OverError):
                raise
            except (P4ReduceError, ControlError) as error:
                self._awaited = str(error)
                log.info("%s: switch %d: %s", host.job_client.who, at, error)
                continue
            self._without_switch = False
            self._incarnations = JobIncarnations.of_newcomer(taken.joined.member)
            host.on_switch_changed(taken)
            self._on(RecoveryEvent.JOINED_THERE)
            if self._agree(taken.job_client, taken.joined, machine):
                return True
            break
        else:
            self._on(RecoveryEvent.NONE_JOINED)
        self._check()
        time.sleep(_FALLBACK_PAUSE)
        self._home_until = time.monotonic() + HOME_AGAIN
        return False

    def _check_fallback(self) -> None:
        """Raise what ends waiting at another switch: also that the job continues where it was.

        A rank may have stopped waiting for that switch in the moment in which the last one arrived
        there. The others are there then, and nobody comes to where this one goes.
        """
        self._check()
        now, member = time.monotonic(), self._incarnations.member
        # Of the life that was lost, the controller may not have noticed yet that it is.
        if self._without_switch or member is self._incarnations.life or now < self._look_home_at:
            return
        with contextlib.suppress(ControlError, ClientClosedError):
            if self._host.job_client.heartbeat(member, _LOOK_TIMEOUT).state == pb.RUNNING:
                raise SwitchUnreachableError("the job continues at the switch where it was")
        self._look_home_at = time.monotonic() + LOOK_HOME

    def _agree(self, job_client: JobClient, joined: JoinedJob, machine: Machine) -> bool:
        """Agree with the others on where to continue, and do so; False: it failed."""
        host = self._host
        agreement = ResumeAgreement(job_client, joined, host.machine(joined), machine)
        try:
            take_over = agreement.reach(self._check)
            self._on(RecoveryEvent.AGREED)
            engine = agreement.engine
            self._resume(Reconnection(joined.transport, joined, engine, take_over), machine)
        except _OverError:
            agreement.give_up()
            raise
        except P4ReduceError as error:
            agreement.give_up()
            self._check()
            log.info("%s: %s", host.job_client.who, error)
            self._on(RecoveryEvent.FAILED_THERE)
            host.on_fallback_failed()
            if agreement.deserted and host.fallback_switches is not None:
                self._without_switch = True
                leave_behind(job_client, joined.member, close=False)
            self._home_until = time.monotonic() + HOME_AGAIN
            return False
        return True

    def _check(self) -> None:
        """Raise what ends all of this."""
        self._raise_if_rank_lost()
        self._check_time()

    def _check_time(self) -> None:
        self._check_wanted()
        self._until_deadline()

    # -- With a ring to fall back to ---------------------------------------------------------------

    def _must_agree(self, reconnector: Reconnector) -> bool:
        """Whether it is time to form the ring.

        Either to reduce by it, or only to agree from where on the switch is used again. With a ring
        to fall back to, a rank does not know whether another one is in it already. A rank that
        alone lost its way to the switch does neither, as the others know of nothing.
        """
        if self._host.fallback is None or not (reconnector.all_lost or reconnector.unheard):
            return False
        late = time.monotonic() - self._started >= self._host.fallback.after
        return late or reconnector.incarnation != 0

    def _by_ring(self, reconnector: Reconnector, machine: Machine) -> bool:
        host = self._host
        assert host.fallback is not None
        if not reconnector.incarnation:
            log.warning(
                "%s: there has been no switch for %.3g s; continuing with a ring of TCP "
                "connections among the ranks",
                host.job_client.who,
                time.monotonic() - self._started,
            )
            host.without_switch(True)
            reconnector.go_by_ring()

        def left(what: str, rank: int | None) -> float:
            return self._left_in_ring(reconnector, what, rank)

        listener = host.fallback.listener
        self._ring = RingRun(
            machine,
            host.call_log,
            host.reduced_by_ring,
            who=host.neighbourhood,
            listener=listener,
            back=lambda: reconnector.incarnation,
            left=left,
        )
        try:
            self._ring.run()
        finally:
            self._ring = None
            host.without_switch(False)
        self._on(RecoveryEvent.RING_AGREED)
        found = reconnector.take()
        assert found is not None
        assert found.joined is not None
        return self._agree(host.job_client, found.joined, machine)

    def _left_in_ring(self, reconnector: Reconnector, what: str, rank: int | None) -> float:
        """Return how long may be waited. Raises what the ring ends with."""
        if self._host.is_over():
            raise self._host.broken or ClosedError("the communicator was closed")
        self._raise_if_rank_lost()
        if reconnector.failed is not None:
            raise reconnector.failed
        now = time.monotonic()
        due = self._due_first()
        if due is None:
            return _LONGEST_WAIT
        if due.deadline > now:
            return due.deadline - now
        seconds = now - due.started
        raise P4ReduceTimeoutError(
            f"{due.description} is not complete after {seconds:.3g} s: the switch was lost "
            f"{now - self._started:.3g} s ago, and this waits for {what}",
            missing=() if rank is None else (rank,),
            seconds=seconds,
        )
