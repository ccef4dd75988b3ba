# SPDX-License-Identifier: Apache-2.0
"""How a session starts: by joining a job, or by forming a failed one again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import grpc

from p4reduce.control.client import ControlError
from p4reduce.control.client import ControllerUnreachableError as NoAnswerError
from p4reduce.errors import AdmissionError, ControllerUnreachableError, SwitchUnreachableError
from p4reduce.latch import Latch
from p4reduce.ring.fallback import Fallback, RingSettings, try_ring
from p4reduce.ring.rank_address import Listener
from p4reduce.session.membership import Attached, Membership, Seat, translated
from p4reduce.session.port import PortShare
from p4reduce.session.session import Session, Settings, neighbourhood
from p4reduce.session.waiting import Waiting

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
    urgent_slots: Sequence[int],
    waiting: Waiting,
) -> Session:
    """Join a job, and return when all of its ranks have joined.

    Args:
        membership: closed if this fails.
        settings: of the session.
        ring: the settings of the ring, or None.
        slots: the number to ask for; 0: the controller's default.
        urgent_slots: how many of them are for class 1, 2 and so on.
        waiting: the deadline for all of it. Missing parts are waited for.

    Raises:
        P4ReduceError: as for `p4reduce.init`.
    """
    newcomer = Newcomer(membership, settings, ring, waiting)
    try:
        while not isinstance(session := newcomer.try_join(slots, urgent_slots), Session):
            _pause(session, waiting)
        return session
    finally:
        newcomer.give_up()


class PlaceLostError(ControllerUnreachableError):
    """The connection to the controller broke while a rank waited, so it lost its place."""

    lasting = False  # as of SwitchUnreachableError


class Newcomer:
    """A rank that joins a job, in two steps.

    Args:
        membership: as for `join`.
        settings: as for `join`.
        ring: as for `join`.
        waiting: as for `join`.
    """

    def __init__(
        self,
        membership: Membership,
        settings: Settings,
        ring: RingSettings | None,
        waiting: Waiting,
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._ring = ring
        self._waiting = waiting
        self._fallback: Fallback | None = None
        self._transport: PortShare | None = None
        self._seat: Seat | None = None
        self._urgent_slots: Sequence[int] = ()
        self._undo = contextlib.ExitStack()
        self._joined = False

    def try_join(
        self, slots: int, urgent_slots: Sequence[int]
    ) -> Session | SwitchUnreachableError | PlaceLostError:
        """Join; return the error if the switch or the controller goes away meanwhile.

        The place is then given up.
        """
        try:
            self.take_seat(slots, urgent_slots)
            return self.begin()
        except (SwitchUnreachableError, PlaceLostError) as error:
            self._undo.close()
            return error

    def take_seat(self, slots: int, urgent_slots: Sequence[int]) -> None:
        """Reach the switch, and take a place in the job. Raises as `join` does."""
        membership = self._membership
        self._urgent_slots = urgent_slots
        self._transport = transport = _connect(self._settings, self._waiting)
        self._undo.callback(transport.close)
        if self._ring is not None:
            here = transport.endpoint
            listener = Listener(self._ring.address, _LOOPBACK if here is None else here.ip)
            self._undo.callback(listener.close)
            membership.ring_address = listener.address
            self._fallback = Fallback(listener, self._ring.after)
        self._seat = seat = membership.join(
            slots, urgent_slots, self._waiting, own_address=transport.endpoint is not None
        )
        self._undo.callback(membership.leave, seat)

    def begin(self) -> Session:
        """Wait until all others are there, and start the session."""
        membership, seat, transport = self._membership, self._seat, self._transport
        assert seat is not None
        assert transport is not None
        try:
            attached = _attach(membership, seat, transport, self._settings, self._waiting)
        except ControlError as error:
            what = f"{membership.who} joined, but the job does not start"
            lost = isinstance(error, NoAnswerError) and not error.lasting
            if lost and error.code == grpc.StatusCode.UNAVAILABLE:
                raise PlaceLostError(f"{what}: {error}") from None
            raise translated(error, what) from None
        self._undo.callback(attached.transport.close)
        kept = list(attached.ready.urgent_slots)
        if kept != list(self._urgent_slots):
            raise AdmissionError(
                f"{membership.who} asked for {list(self._urgent_slots)} urgent slots, and its "
                f"controller keeps {kept}. An older controller knows one "
                "class of these"
            )
        _try_ring(self._fallback, attached, self._waiting)
        self._undo.pop_all()
        self._joined = True
        return Session(membership, attached, self._settings, self._fallback)

    def give_up(self) -> None:
        """Give everything back. Idempotent, and harmless after `begin`."""
        self._undo.close()
        if not self._joined:
            self._joined = True
            self._membership.close()


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
    waiting = Waiting(session.membership.who, time.monotonic() + timeout, cancelled)
    size, seat = session.world_size, session.stop()
    while True:
        membership, seat = _new_seat(session.membership, seat, world_size, waiting)
        session.moved(seat)
        with contextlib.ExitStack() as undo:
            transport = _connect(session.settings, waiting)
            try:
                attached = _attach(membership, seat, transport, session.settings, waiting)
            except SwitchUnreachableError as error:
                _pause(error, waiting)
                continue
            except ControlError as error:
                if _is_over(error, waiting):
                    what = f"{membership.who} was formed again, but does not start"
                    raise translated(error, what) from None
                continue
            undo.callback(attached.transport.close)
            _try_ring(session.fallback, attached, waiting)
            undo.pop_all()
        session.hand_over()
        settings = session.settings
        if seat.world_size != size:  # the ranks have other numbers now
            settings = replace(settings, beside_controller=())
        return Session(membership, attached, settings, session.fallback)


def _new_seat(
    membership: Membership, seat: Seat, world_size: int, waiting: Waiting
) -> tuple[Membership, Seat]:
    while isinstance(new := _try_reform(membership, seat, world_size, waiting), ControlError):
        if _is_over(new, waiting):
            raise translated(new, f"{membership.who} cannot be formed again")
        waiting.pause(_PAUSE, new)
    return membership.moved(new), new


def _try_reform(
    membership: Membership, seat: Seat, world_size: int, waiting: Waiting
) -> Seat | ControlError:
    try:
        new, _ = membership.reform(
            seat,
            world_size=world_size,
            completed=0,
            intact=False,
            timeout=waiting.left,
            check=waiting.check,
        )
    except ControlError as error:
        return error
    return new


def _is_over(error: ControlError, waiting: Waiting) -> bool:
    passing = isinstance(error, NoAnswerError) or error.code in _NOT_YET
    return not passing or not waiting.may_wait(_PAUSE)


def _connect(settings: Settings, waiting: Waiting) -> PortShare:
    while isinstance(opened := _try_connect(settings), SwitchUnreachableError):
        _pause(opened, waiting)
    return opened


def _pause(error: SwitchUnreachableError | PlaceLostError, waiting: Waiting) -> None:
    """Wait briefly for a lost peer to return; raises the error if waiting cannot help."""
    if error.lasting or not waiting.may_wait(_PAUSE):
        raise error
    waiting.pause(_PAUSE, error)


def _try_connect(settings: Settings) -> PortShare | SwitchUnreachableError:
    try:
        return settings.connect(0)
    except SwitchUnreachableError as error:
        return error


def _attach(
    membership: Membership,
    seat: Seat,
    transport: PortShare,
    settings: Settings,
    waiting: Waiting,
) -> Attached:
    def check() -> None:
        waiting.check()
        waiting.say("the other ranks are not all there yet")

    return membership.attach(seat, transport, waiting.left, check, lambda: settings.connect(0))


def _try_ring(fallback: Fallback | None, attached: Attached, waiting: Waiting) -> None:
    if fallback is not None:
        try_ring(neighbourhood(attached), fallback.listener, waiting.left)
