# SPDX-License-Identifier: Apache-2.0
"""How a session starts: by joining a job, or by forming a failed one again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import grpc

from p4reduce.control.client import ControlError, NoAnswerError
from p4reduce.errors import (
    AdmissionError,
    ControllerUnreachableError,
    P4ReduceError,
    SwitchUnreachableError,
)
from p4reduce.latch import Latch
from p4reduce.ring.fallback import try_ring
from p4reduce.ring.rank_address import RingListener
from p4reduce.session.job_client import JobClient, JoinedJob, Member, translated
from p4reduce.session.port import PortShare
from p4reduce.session.session import Session, SessionSettings, neighbourhood
from p4reduce.session.waiting import Waiting

_LOOPBACK = "127.0.0.1"
_NOT_YET = frozenset(
    {
        grpc.StatusCode.ABORTED,  # a further rank was lost, or the switch again
        grpc.StatusCode.FAILED_PRECONDITION,  # the controller does not know yet what happened
        grpc.StatusCode.UNAVAILABLE,
    }
)


def join(
    job_client: JobClient,
    settings: SessionSettings,
    *,
    slots: int,
    urgent_slots: Sequence[int],
    waiting: Waiting,
) -> Session:
    """Join a job, and return when all of its ranks have joined.

    Args:
        job_client: closed if this fails.
        settings: of the session.
        slots: the number to ask for; 0: the controller's default.
        urgent_slots: how many of them are for class 1, 2 and so on.
        waiting: the deadline for all of it. Missing parts are waited for.

    Raises:
        P4ReduceError: as for `p4reduce.init`.
    """
    newcomer = Newcomer(job_client, settings, waiting)
    errors = SwitchUnreachableError, PlaceLostError

    def attempt() -> Session:
        try:
            newcomer.join_job(slots, urgent_slots)
            return newcomer.begin()
        except errors:
            newcomer.give_up_place()
            raise

    try:
        return waiting.retry(attempt, _passes, *errors)
    finally:
        newcomer.give_up()


class PlaceLostError(ControllerUnreachableError):
    """The connection to the controller broke while a rank waited, so it lost its place."""

    lasting = False  # as of SwitchUnreachableError


class Newcomer:
    """A rank that joins a job, in two steps. The arguments are those of `join`."""

    def __init__(self, job_client: JobClient, settings: SessionSettings, waiting: Waiting) -> None:
        self._job_client = job_client
        self._settings = settings
        self._waiting = waiting
        self._listener: RingListener | None = None
        self._transport: PortShare | None = None
        self._member: Member | None = None
        self._urgent_slots: Sequence[int] = ()
        self._undo = contextlib.ExitStack()
        self._joined = False

    def join_job(self, slots: int, urgent_slots: Sequence[int]) -> None:
        """Reach the switch, and take a place in the job. Raises as `join` does."""
        job_client = self._job_client
        self._urgent_slots = urgent_slots
        self._transport = transport = _connect(self._settings, self._waiting)
        self._undo.callback(transport.close)
        if (ring := self._settings.ring) is not None:
            here = transport.endpoint
            self._listener = RingListener(ring.address, _LOOPBACK if here is None else here.ip)
            self._undo.callback(self._listener.close)
            job_client.ring_address = self._listener.address
        self._member = member = job_client.join(
            slots, urgent_slots, self._waiting, own_address=transport.endpoint is not None
        )
        self._undo.callback(job_client.leave, member)

    def begin(self) -> Session:
        """Wait until all others are there, and start the session."""
        job_client, member, transport = self._job_client, self._member, self._transport
        assert member is not None
        assert transport is not None
        try:
            joined = _attach(job_client, member, transport, self._settings, self._waiting)
        except ControlError as error:
            what = f"{job_client.who} joined, but the job does not start"
            lost = isinstance(error, NoAnswerError) and not error.lasting
            if lost and error.code == grpc.StatusCode.UNAVAILABLE:
                raise PlaceLostError(f"{what}: {error}") from None
            raise translated(error, what) from None
        self._undo.callback(joined.transport.close)
        kept = list(joined.ready.urgent_slots)
        if kept != list(self._urgent_slots):
            raise AdmissionError(
                f"{job_client.who} asked for {list(self._urgent_slots)} urgent slots, and its "
                f"controller keeps {kept}. An older controller knows one "
                "class of these"
            )
        _try_ring(self._listener, joined, self._waiting)
        self._undo.pop_all()
        self._joined = True
        return Session(job_client, joined, self._settings, self._listener)

    def give_up_place(self) -> None:
        """Leave the job, and close the transport. Harmless after `begin`."""
        self._undo.close()

    def give_up(self) -> None:
        """Give everything back. Idempotent, and harmless after `begin`."""
        self.give_up_place()
        if not self._joined:
            self._joined = True
            self._job_client.close()


def form_anew(session: Session, world_size: int, timeout: float, cancelled: Latch) -> Session:
    """Form a failed job again with the remaining ranks.

    Args:
        session: a broken one. If this fails, it may be tried again with it.
        world_size: of the new job; 0: the number of remaining ranks.
        timeout: seconds.
        cancelled: set when the result is not needed any more.

    Raises:
        P4ReduceError: as for `Communicator.reform`.
    """
    waiting = Waiting(session.job_client.who, time.monotonic() + timeout, cancelled)
    _settle(session, waiting)
    size, settings = session.world_size, session.settings
    job_client, member = session.job_client, session.stop()

    def attempt() -> JoinedJob:
        nonlocal job_client, member
        member = _new_member(session, member, world_size, waiting)
        job_client = session.job_client.with_member(member)
        return _attach(job_client, member, _connect(settings, waiting), settings, waiting)

    try:
        joined = waiting.retry(attempt, _passes, ControlError, SwitchUnreachableError)
    except ControlError as error:
        what = f"{job_client.who} was formed again, but does not start"
        raise translated(error, what) from None
    with contextlib.ExitStack() as undo:
        undo.callback(joined.close)
        _try_ring(session.listener, joined, waiting)
        undo.pop_all()
    session.hand_over()
    if member.world_size != size:  # the ranks have other numbers now
        settings = replace(settings, beside_controller=())
    return Session(job_client, joined, settings, session.listener)


def _settle(session: Session, waiting: Waiting) -> None:
    """Return when the ranks that remain agree on what is over.

    This rank has results that others may lack. So it does not stop before it has heard of the loss.
    """

    def attempt() -> None:
        session.settle(waiting.left)
        if session.broken is None and not session.is_recovering:
            raise AdmissionError(
                f"job {session.job!r} is running; only one that failed is formed again"
            )

    try:
        waiting.retry(attempt, _passes, ControlError, AdmissionError)
    except ControlError as error:
        raise _not_formed_again(session, error) from None


def _new_member(session: Session, member: Member, world_size: int, waiting: Waiting) -> Member:
    """Get a place in the next life of the job."""

    def attempt() -> Member:
        return session.job_client.reform(
            member,
            world_size=world_size,
            completed=0,
            intact=False,
            timeout=waiting.left,
            check=waiting.check,
        )

    try:
        new = waiting.retry(attempt, _passes, ControlError)
    except ControlError as error:
        raise _not_formed_again(session, error) from None
    session.on_member_changed(new)
    return new


def _not_formed_again(session: Session, error: ControlError) -> P4ReduceError:
    return translated(error, f"{session.job_client.who} cannot be formed again")


def _passes(error: ControlError | SwitchUnreachableError | PlaceLostError | AdmissionError) -> bool:
    """Whether what keeps a rank from its job may pass."""
    if isinstance(error, ControlError):
        return isinstance(error, NoAnswerError) or error.code in _NOT_YET
    return isinstance(error, AdmissionError) or not error.lasting


def _connect(settings: SessionSettings, waiting: Waiting) -> PortShare:
    return waiting.retry(lambda: settings.connect(0), _passes, SwitchUnreachableError)


def _attach(
    job_client: JobClient,
    member: Member,
    transport: PortShare,
    settings: SessionSettings,
    waiting: Waiting,
) -> JoinedJob:
    def check() -> None:
        waiting.check()
        waiting.say("the other ranks are not all there yet")

    return job_client.attach(member, transport, waiting.left, check, lambda: settings.connect(0))


def _try_ring(listener: RingListener | None, joined: JoinedJob, waiting: Waiting) -> None:
    if listener is not None:
        try_ring(neighbourhood(joined), listener, waiting.left)
