# SPDX-License-Identifier: Apache-2.0
"""How a session starts: by joining a job, or by forming a failed one again."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import grpc

from p4reduce.control.client import ControlError, NoAnswerError
from p4reduce.errors import AdmissionError, ControllerUnreachableError, SwitchUnreachableError
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


def join(job_client: JobClient, settings: SessionSettings, waiting: Waiting) -> Session:
    """Join a job, and return when all of its ranks have joined. Missing parts are waited for.

    The client is closed if this fails. Raises as `p4reduce.init` does.
    """
    newcomer = Newcomer(job_client, settings, waiting)
    errors = SwitchUnreachableError, PlaceLostError

    def attempt() -> Session:
        try:
            newcomer.join_job()
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
        self._place = contextlib.ExitStack()  # gives up what `join_job` has got
        self._given = contextlib.ExitStack()  # closes what this was given
        self._given.callback(job_client.close)

    def join_job(self) -> None:
        """Reach the switch, and take a place in the job. Raises as `join` does."""
        job_client, settings = self._job_client, self._settings
        self._transport = transport = _connect(settings, self._waiting)
        self._place.callback(transport.close)
        if (ring := settings.ring) is not None:
            here = transport.endpoint
            self._listener = RingListener(ring.address, _LOOPBACK if here is None else here.ip)
            self._place.callback(self._listener.close)
            job_client.ring_address = self._listener.address
        self._member = member = job_client.join(
            settings.options, self._waiting, own_address=transport.endpoint is not None
        )
        self._place.callback(job_client.leave, member)

    def begin(self) -> Session:
        """Wait until all others are there, and start the session."""
        job_client, settings = self._job_client, self._settings
        assert self._member is not None
        assert self._transport is not None
        try:
            joined = _attach(job_client, self._member, self._transport, settings, self._waiting)
        except ControlError as error:
            what = f"{job_client.who} joined, but the job does not start"
            lost = isinstance(error, NoAnswerError) and not error.lasting
            if lost and error.code == grpc.StatusCode.UNAVAILABLE:
                raise PlaceLostError(f"{what}: {error}") from None
            raise translated(error, what) from None
        self._place.callback(joined.transport.close)
        kept, asked = list(joined.ready.urgent_slots), list(settings.options.urgent_slots)
        if kept != asked:
            raise AdmissionError(
                f"{job_client.who} asked for {asked} urgent slots, and its controller keeps "
                f"{kept}. An older controller knows one class of these"
            )
        _try_ring(self._listener, joined, self._waiting)
        self._place.pop_all()
        self._given.pop_all()
        return Session(job_client, joined, settings, self._listener)

    def give_up_place(self) -> None:
        """Leave the job, and close the transport. Harmless after `begin`."""
        self._place.close()

    def give_up(self) -> None:
        """Give everything back. Idempotent, and harmless after `begin`."""
        self._place.close()
        self._given.close()


def form_anew(session: Session, world_size: int, timeout: float, cancelled: Latch) -> Session:
    """Form a failed job again with the remaining ranks.

    If this fails, it may be tried again with the session. Raises as `Communicator.reform` does.

    Args:
        session: a broken one.
        world_size: of the new job; 0: the number of remaining ranks.
        timeout: seconds.
        cancelled: set when the result is not needed any more.
    """
    waiting = Waiting(session.job_client.who, time.monotonic() + timeout, cancelled)
    size, settings = session.world_size, session.settings
    job_client, member, is_formed = session.job_client, session.member, False

    def attempt() -> JoinedJob:
        nonlocal job_client, member, is_formed
        job_client, is_formed = session.job_client, False
        member = job_client.reform(
            member,
            world_size=world_size,
            completed=0,
            intact=False,
            timeout=waiting.left,
            check=waiting.check,
        )
        session.on_member_changed(member)
        job_client, is_formed = job_client.with_member(member), True
        return _attach(job_client, member, _connect(settings, waiting), settings, waiting)

    try:
        _settle(session, waiting)
        member = session.stop()
        joined = waiting.retry(attempt, _passes, ControlError, SwitchUnreachableError)
    except ControlError as error:
        what = "was formed again, but does not start" if is_formed else "cannot be formed again"
        raise translated(error, f"{job_client.who} {what}") from None
    with contextlib.ExitStack() as undo:
        undo.callback(joined.close)
        _try_ring(session.listener, joined, waiting)
        undo.pop_all()
    session.hand_over()
    if member.world_size != size:  # the ranks have other numbers now
        settings = replace(settings, beside_controller=())
    return Session(job_client, joined, settings, session.listener)


def _settle(session: Session, waiting: Waiting) -> None:
    """Return when the ranks that remain agree on what is over. Raises ControlError.

    This rank has results that others may lack. So it does not stop before it has heard of the loss.
    """

    def attempt() -> None:
        session.settle(waiting.left)
        if session.broken is None and not session.is_recovering:
            raise AdmissionError(
                f"job {session.job!r} is running; only one that failed is formed again"
            )

    waiting.retry(attempt, _passes, ControlError, AdmissionError)


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
