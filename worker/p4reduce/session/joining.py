# SPDX-License-Identifier: Apache-2.0
"""How a session comes about: by joining a job, or by forming one anew that has failed."""

from __future__ import annotations

import contextlib
import time

import grpc

from p4reduce.control.client import ControlError
from p4reduce.control.client import ControllerUnreachableError as NoAnswerError
from p4reduce.errors import SwitchUnreachableError
from p4reduce.ring.fallback import Fallback, RingSettings, try_ring
from p4reduce.ring.rank_address import Listener
from p4reduce.session.membership import Attached, Membership, Seat, translated
from p4reduce.session.session import Session, Settings, neighbourhood
from p4reduce.transport.base import Transport

_LOOPBACK = "127.0.0.1"
_PAUSE = 0.1  # seconds between two attempts

_NOT_YET = frozenset(
    {
        grpc.StatusCode.ABORTED,  # a further rank was lost, or the switch again
        grpc.StatusCode.FAILED_PRECONDITION,  # the controller does not know yet what happened
        grpc.StatusCode.UNAVAILABLE,
    }
)


def join(
    membership: Membership,
    settings: Settings,
    ring: RingSettings | None,
    *,
    slots: int,
    deadline: float,
) -> Session:
    """Join a job and return when all of its ranks are there.

    Args:
        membership: closed if this fails.
        settings: of the session.
        ring: whether and how to fall back to one.
        slots: to ask for; 0: the controller's default.
        deadline: for all that, on the monotonic clock.

    Raises:
        P4ReduceError: as `p4reduce.init`.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(membership.close)
        transport = settings.connect(0)
        undo.callback(transport.close)
        fallback = None
        if ring is not None:
            here = transport.endpoint
            listener = Listener(ring.address, _LOOPBACK if here is None else here.ip)
            undo.callback(listener.close)
            membership.ring_address = listener.address
            fallback = Fallback(listener, ring.after)
        seat = membership.join(slots, deadline)
        undo.callback(membership.leave, seat)
        try:
            ready = membership.attach(seat, transport, _left(deadline))
        except ControlError as error:
            what = f"{membership.who} joined, but the job does not start"
            raise translated(error, what) from None
        attached = Attached(seat, transport, ready)
        _try_ring(fallback, attached, deadline)
        undo.pop_all()
    return Session(membership, attached, settings, fallback)


def form_anew(session: Session, world_size: int, timeout: float) -> Session:
    """Go on after a job that failed, with those who are there.

    Args:
        session: broken. It computes no more, but may be given to this again if this fails.
        world_size: of the new job; 0: as many as are there.
        timeout: seconds.

    Raises:
        P4ReduceError: as `Communicator.reform`.
    """
    deadline = time.monotonic() + timeout
    seat = session.stop()
    while True:
        membership, seat = _new_seat(session.membership, seat, world_size, deadline)
        session.moved(seat)
        with contextlib.ExitStack() as undo:
            transport = _connect(session.settings, deadline)
            undo.callback(transport.close)
            try:
                ready = membership.attach(seat, transport, _left(deadline))
            except ControlError as error:
                if _is_over(error, deadline):
                    what = f"{membership.who} was formed anew, but does not start"
                    raise translated(error, what) from None
                continue
            attached = Attached(seat, transport, ready)
            _try_ring(session.fallback, attached, deadline)
            undo.pop_all()
        session.hand_over()
        return Session(membership, attached, session.settings, session.fallback)


def _new_seat(
    membership: Membership, seat: Seat, world_size: int, deadline: float
) -> tuple[Membership, Seat]:
    while True:
        try:
            new, _ = membership.reform(
                seat,
                world_size=world_size,
                completed=0,
                intact=False,
                timeout=_left(deadline),
            )
        except ControlError as error:
            if _is_over(error, deadline):
                raise translated(error, f"{membership.who} cannot be formed anew") from None
        else:
            return membership.moved(new), new
        time.sleep(_PAUSE)


def _is_over(error: ControlError, deadline: float) -> bool:
    passing = isinstance(error, NoAnswerError) or error.code in _NOT_YET
    return not passing or time.monotonic() + _PAUSE >= deadline


def _connect(settings: Settings, deadline: float) -> Transport:
    while True:
        try:
            return settings.connect(0)
        except SwitchUnreachableError:
            if time.monotonic() + _PAUSE >= deadline:
                raise
        time.sleep(_PAUSE)


def _try_ring(fallback: Fallback | None, attached: Attached, deadline: float) -> None:
    if fallback is not None:
        try_ring(neighbourhood(attached), fallback.listener, _left(deadline))


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)
