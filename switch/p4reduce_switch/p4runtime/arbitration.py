# SPDX-License-Identifier: Apache-2.0
"""Decides which controller may write: arbitration by election id.

P4Runtime 1.4.1, "Client Arbitration and Controller Replication". In each role, the controller whose
election id is at least the highest ever seen is primary. When it leaves, there is no primary until
a controller sends such an id again. BMv2 follows an older text and promotes the next controller by
itself. A client that follows the specification works with both.

A controller becomes primary only when the writes of the one before have ended. `Arbiter` has a lock
of its own, which nobody holds while waiting. So a stream can end, and give its election id back,
whatever the data plane does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import (
    P4RuntimeError,
    denied,
    exhausted,
    invalid,
    not_found,
    too_early,
    unavailable,
    unsupported,
)

log = logging.getLogger(__name__)

# Packet-ins that wait for a controller that does not read; more are dropped.
PACKET_IN_QUEUE = 1024
_WRITES_TIMEOUT_S = 30.0


def election_id_of(message: Any) -> int | None:
    """Return the 128-bit election id of a request; None if it is not set, which differs from 0."""
    if not message.HasField("election_id"):
        return None
    return (int(message.election_id.high) << 64) | int(message.election_id.low)


def format_election_id(election_id: int | None) -> str:
    return "unset" if election_id is None else str(election_id)


class ControllerStream:
    """An open stream: the messages to send, and the controller's claimed role."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.role: str | None = None  # None until the first arbitration message
        self.is_gone = False
        self.election_id: int | None = None
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, message: Any) -> None:
        """Queue a `StreamMessageResponse`."""
        self._outgoing.put(message)

    def send_packet_in(self, message: Any) -> bool:
        """Queue a packet-in, or anything else that `outgoing` yields, unless too many wait."""
        if self._outgoing.qsize() >= PACKET_IN_QUEUE:
            return False
        self._outgoing.put(message)
        return True

    def close(self, error: P4RuntimeError | None = None) -> None:
        """End the stream with status OK, or with `error`."""
        self._outgoing.put(error)

    def outgoing(self) -> Iterator[Any]:
        """Yield what was queued, until the stream is closed.

        Raises:
            P4RuntimeError: the error that the stream was closed with.
        """
        while True:
            item = self._outgoing.get()
            if item is None:
                return
            if isinstance(item, P4RuntimeError):
                raise item
            yield item


class _Role:
    def __init__(self) -> None:
        self.live: list[ControllerStream] = []
        self.primary: ControllerStream | None = None
        self.next: ControllerStream | None = None  # primary once the writes in flight have ended
        self.highest: int | None = None

    @property
    def chosen(self) -> ControllerStream | None:
        return self.primary or self.next


class Arbiter:
    """The controllers of one device, by role. Thread-safe.

    Args:
        device_id: of the device.
        max_streams: how many streams may be open.
    """

    def __init__(self, device_id: int, max_streams: int) -> None:
        self._device_id = device_id
        self._max_streams = max_streams
        self._changed = threading.Condition()
        self._open: set[ControllerStream] = set()
        self._writes = 0  # requests of primaries that are being carried out
        self._stopped: P4RuntimeError | None = None
        self._roles: dict[str, _Role] = {}
        # Replaced as a whole: the data plane reads it without the lock.
        self.primaries: tuple[ControllerStream, ...] = ()

    def join(self, peer: str) -> ControllerStream:
        """Return the controller of a new stream.

        Raises:
            P4RuntimeError: too many streams are open, or the switch stops.
        """
        with self._changed:
            if self._stopped is not None:
                raise self._stopped
            if len(self._open) >= self._max_streams:
                raise exhausted(
                    f"{len(self._open)} streams are open, which is the maximum; close one first"
                )
            controller = ControllerStream(peer)
            self._open.add(controller)
            return controller

    def update(self, controller: ControllerStream, message: Any) -> None:
        """Apply a `MasterArbitrationUpdate`, and notify the controllers concerned.

        Raises:
            P4RuntimeError: the stream must be ended with this status.
        """
        with self._changed:
            if controller.is_gone:
                return  # its last message was still on the way when the stream ended
            name = message.role.name
            self._check(controller, message, name)
            role = self._roles.setdefault(name, _Role())
            election_id = election_id_of(message)
            if election_id is not None and any(
                other is not controller and other.election_id == election_id for other in role.live
            ):
                raise invalid(
                    f"election id {election_id} is already used by another live controller of "
                    f"{_role_text(name)}; use an id of your own, above {role.highest} to be primary"
                )
            if controller.role is None:
                controller.role = name
                role.live.append(controller)
            controller.election_id = election_id
            self._elect(role, controller)

    def leave(self, controller: ControllerStream) -> None:
        """Forget a controller whose stream ended, and notify the others if it was the primary."""
        with self._changed:
            controller.is_gone = True
            self._open.discard(controller)
            if controller.role is None:
                return
            role = self._roles[controller.role]
            role.live.remove(controller)
            if role.chosen is controller:
                log.info(
                    "primary %s of %s left (%s)",
                    format_election_id(controller.election_id),
                    _role_text(controller.role),
                    controller.peer,
                )
                self._choose(role, None)
                self._notify(role, role.live)
            controller.role = None

    def stop(self, error: P4RuntimeError) -> None:
        """End all streams with `error`, and admit no others."""
        with self._changed:
            self._stopped = error
            for controller in self._open:
                controller.close(error)

    @contextmanager
    def writing(self, role_name: str, election_id: int | None) -> Iterator[None]:
        """Carry out a request of the primary; no other becomes primary meanwhile.

        Raises:
            P4RuntimeError: as `check_primary`.
        """
        with self._changed:
            self._check_primary(role_name, election_id)
            self._writes += 1
        try:
            yield
        finally:
            with self._changed:
                self._writes -= 1
                self._changed.notify_all()

    def check_primary(self, role_name: str, election_id: int | None) -> None:
        """Refuse a request that does not come from the primary of its role.

        Raises:
            P4RuntimeError: NOT_FOUND for an unknown role, PERMISSION_DENIED for a non-primary.
        """
        with self._changed:
            self._check_primary(role_name, election_id)

    def is_primary(self, controller: ControllerStream) -> bool:
        return controller in self.primaries

    # -- With the lock held ------------------------------------------------------------------------

    def _check_primary(self, role_name: str, election_id: int | None) -> None:
        role = self._roles.get(role_name)
        if role is None and role_name:
            raise not_found(
                f"role '{role_name}' is unknown: no controller ever claimed it by a "
                "MasterArbitrationUpdate"
            )
        primary = role.primary if role is not None else None
        if primary is None:
            raise denied(
                f"no controller is primary of {_role_text(role_name)}; "
                "open a StreamChannel and send a MasterArbitrationUpdate first"
            )
        if election_id is None or election_id != primary.election_id:
            raise denied(
                f"election id {format_election_id(election_id)} is not the primary's of "
                f"{_role_text(role_name)}, which is {format_election_id(primary.election_id)}; "
                "only the primary may write"
            )

    def _check(self, controller: ControllerStream, message: Any, role_name: str) -> None:
        known = controller.role is not None
        if message.device_id != self._device_id:
            refuse = too_early if known else not_found
            raise refuse(
                f"device_id {message.device_id} is not served here; "
                f"the device of this switch is {self._device_id}"
            )
        refuse_role_id(message.role, "id")
        if known and role_name != controller.role:
            raise too_early(
                f"this stream has {_role_text(controller.role or '')}; open another stream to "
                f"take {_role_text(role_name)}"
            )
        if message.role.HasField("config"):
            raise invalid(
                f"{_role_text(role_name)} has a config of type '{message.role.config.type_url}'; "
                "no scheme of role configs is supported, leave it unset for full access"
            )

    def _elect(self, role: _Role, controller: ControllerStream) -> None:
        election_id = controller.election_id
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.highest = election_id
            stays = role.primary is controller
            if not stays:
                self._choose(role, controller)
            self._notify(role, [other for other in role.live if other is not controller])
            if not stays:
                self._wait_for_writes(role, controller)
            if role.primary is controller:
                self._notify(role, [controller])
        elif role.chosen is controller:  # stepped down
            self._choose(role, None)
            self._notify(role, role.live)
        else:
            self._notify(role, [controller])

    def _wait_for_writes(self, role: _Role, controller: ControllerStream) -> None:
        """Make the chosen controller primary, once the writes in flight have ended."""
        name = _role_text(controller.role or "")
        ended = self._changed.wait_for(
            lambda: not self._writes or role.next is not controller, _WRITES_TIMEOUT_S
        )
        if role.next is not controller:
            return  # it has left, or another one was chosen
        if not ended:
            raise unavailable(
                f"a request of the previous primary of {name} has not ended within "
                f"{_WRITES_TIMEOUT_S:.0f} s; try again"
            )
        role.primary, role.next = controller, None
        self._set_primaries()
        log.info(
            "controller %s is primary of %s with election id %d",
            controller.peer,
            name,
            controller.election_id,
        )

    def _choose(self, role: _Role, controller: ControllerStream | None) -> None:
        """Nobody is primary, and at most one will be."""
        role.primary, role.next = None, controller
        self._set_primaries()
        self._changed.notify_all()

    def _set_primaries(self) -> None:
        self.primaries = tuple(r.primary for r in self._roles.values() if r.primary is not None)

    def _notify(self, role: _Role, controllers: list[ControllerStream]) -> None:
        for controller in controllers:
            response = p4runtime_pb2.StreamMessageResponse()
            update = response.arbitration
            update.device_id = self._device_id
            if controller.role:
                update.role.name = controller.role
            if role.highest is not None:
                update.election_id.high = role.highest >> 64
                update.election_id.low = role.highest & ((1 << 64) - 1)
            if role.chosen is controller:
                update.status.code = code_pb2.OK
                update.status.message = "you are the primary"
            elif role.chosen is not None:
                update.status.code = code_pb2.ALREADY_EXISTS
                update.status.message = "you are a backup; another controller is the primary"
            else:
                update.status.code = code_pb2.NOT_FOUND
                update.status.message = (
                    "there is no primary; to become it, send an election id of at least the "
                    "highest seen"
                )
            controller.send(response)


def refuse_role_id(message: Any, field: str = "role_id") -> None:
    """Refuse the number that a role had before version 1.3 of the API, which gave it a name."""
    number = getattr(message, field, 0)
    if number:
        raise unsupported(f"{field} {number} of a role is not supported; use its name (role)")


def _role_text(name: str) -> str:
    return f"role '{name}'" if name else "the default role"
