# SPDX-License-Identifier: Apache-2.0
"""A port on a UDP socket: for workers anywhere that IP reaches, without root and without a cable.

One peer at a time. It is let in by a handshake (`p4reduce_native.udp_handshake`), which shows that
it is where it says it is, and that it has the key where there is one. From there on its datagrams
come to a connected socket of its own and carry a token; whatever else comes is counted and has no
effect.
"""

from __future__ import annotations

import ipaddress
import logging
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from p4reduce_native.datagrams import DatagramLink
from p4reduce_native.link import Link, why_not
from p4reduce_native.udp_handshake import Doorkeeper, Entered, never_cut_up

from p4reduce_switch.ports.egress_queue import EgressQueue
from p4reduce_switch.ports.port import (
    MAX_FRAME_BYTES,
    MIN_FRAME_BYTES,
    Poller,
    PortError,
    PortSpec,
    PortStats,
)
from p4reduce_switch.seldom import Seldom

__all__ = ["GONE_AFTER", "UdpListener", "UdpPort"]

log = logging.getLogger(__name__)

GONE_AFTER = 10
"""So many seconds a peer may say nothing, though it is asked."""

_BUFFER_BYTES = 4 << 20
_HANDSHAKES = 64  # of one turn, so that a flood of them does not stop the port's frames


class UdpListener(ABC):
    """What every UDP port does in Python: the handshake, and whose turn it is.

    Args:
        spec: with its `udp_address`.
        key: which workers have to know; empty: none.

    Raises:
        PortError: nothing can listen there.
    """

    def __init__(self, spec: PortSpec, key: bytes = b"") -> None:
        assert spec.udp_address is not None
        self.number = spec.number
        self.description = str(spec)
        self._poller: Poller | None = None
        self._who = ""  # the peer, while there is one
        self._doorkeeper = Doorkeeper(key)
        self._scarcity = Seldom(log)
        self._strangers = 0
        address = spec.udp_address
        try:
            self._listener = _listen(address.host, address.udp_port)
        except OSError as error:
            raise PortError(f"port {spec}: {error.strerror or error}") from None
        self._address = self._listener.getsockname()
        if address.udp_port == 0:
            self.description = self.description.rpartition(":")[0] + f":{self._address[1]}"
        if not key and not ipaddress.ip_address(self._address[0].partition("%")[0]).is_loopback:
            log.warning(
                "port %s has no key: whoever reaches it may become its worker (--udp-key-file)",
                self.description,
            )

    @property
    def is_up(self) -> bool:
        return bool(self._who)

    @property
    def has_carrier(self) -> bool:
        return True  # as a link on which nobody has been heard yet

    def flush(self) -> None:
        """See whether the peer is there still."""
        if self._who and self._poke() > GONE_AFTER:
            self._disconnect(f"has not been heard for {GONE_AFTER} s")

    def close(self) -> None:
        self._disconnect("is cut off: the switch stops")
        if self._poller is not None:
            self._poller.unwatch(self._listener.fileno())
            self._poller = None
        self._listener.close()

    # -- In the data plane's thread --------------------------------------------------------------

    @abstractmethod
    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        """Serve a peer, whose socket is the port's from now on."""

    @abstractmethod
    def _poke(self) -> int:
        """Ask the peer for a word, as `p4r_link_poke` does."""

    @abstractmethod
    def _disconnecting(self) -> None:
        """Stop serving the peer, and close its socket."""

    def _let_in_from(self, poller: Poller) -> None:
        self._poller = poller
        poller.watch(self._listener.fileno(), select.EPOLLIN, self._on_datagrams)

    def _on_datagrams(self, events: int) -> None:
        for _ in range(_HANDSHAKES):
            try:
                message, address = self._listener.recvfrom(65536)
            except OSError:
                return
            answer, entered = self._doorkeeper.answer(message, address, is_free=not self._who)
            if not answer:
                self._strangers += 1
                continue
            if entered is not None and not self._let_in(address, entered):
                continue
            try:
                self._listener.sendto(answer, address)
            except OSError as error:
                log.debug("port %s: no answer to %s: %s", self.description, address, error)

    def _let_in(self, address: tuple[str, int], entered: Entered) -> bool:
        try:
            peer = _socket_for(self._listener, self._address, address)
        except OSError as error:
            self._scarcity.warning("port %s: cannot take a peer: %s", self.description, error)
            return False
        self._connected(peer, entered)
        self._who = f"{address[0]}:{address[1]}"
        log.info(
            "port %s is up: peer is %s, datagrams of up to %d bytes",
            *(self.description, self._who, entered.size),
        )
        return True

    def _disconnect(self, why: str) -> None:
        if self._who:
            who, self._who = self._who, ""
            self._disconnecting()
            log.info("port %s is down: its peer %s %s", self.description, who, why)


class _Link(Protocol):
    """What `DatagramLink` and `Link` have in common."""

    @property
    def strangers(self) -> int: ...

    def fileno(self) -> int: ...

    def receive(self) -> list[bytes]: ...

    def send(self, frames: Sequence[bytes]) -> int: ...

    def events(self, *, frames_wait: bool) -> int: ...

    def poke(self) -> int: ...

    def close(self) -> None: ...


class UdpPort(UdpListener):
    """A port that Python serves. Opened by the constructor. Raises PortError, as `UdpListener`."""

    def __init__(self, spec: PortSpec, key: bytes = b"") -> None:
        super().__init__(spec, key)
        self.stats = PortStats()
        self._on_frames: Callable[[], None] = _nothing
        self._link: _Link | None = None
        self._events = 0
        self._of_former_peers = 0
        self._egress = EgressQueue(
            self.stats, max_bytes=MAX_FRAME_BYTES, set_events=lambda _: self._set_events()
        )

    def attach(self, poller: Poller, on_frames: Callable[[], None]) -> None:
        self._on_frames = on_frames
        self._let_in_from(poller)

    def receive(self) -> Sequence[bytes]:
        if self._link is None:
            return ()
        try:
            frames = self._link.receive()
        except OSError:
            self._disconnect("left")
            return ()
        self._set_events()
        return self._sort_out(frames)

    def send(self, frames: Sequence[bytes]) -> None:
        if self._link is None:
            self.stats.tx_down += len(frames)
            return
        try:
            self._egress.send(self._link.send, frames)
        except OSError:
            self._disconnect("left")

    def poll_stats(self) -> None:
        own = 0 if self._link is None else self._link.strangers
        self.stats.rx_stranger = self._strangers + self._of_former_peers + own

    # -- In the data plane's thread --------------------------------------------------------------

    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        self._link = (
            Link.over_datagrams(peer, entered) if why_not() is None else DatagramLink(peer, entered)
        )
        assert self._poller is not None
        self._events = self._link.events(frames_wait=False)
        self._poller.watch(self._link.fileno(), self._events, self._on_events)

    def _poke(self) -> int:
        assert self._link is not None
        return self._link.poke()

    def _disconnecting(self) -> None:
        link, self._link = self._link, None
        assert link is not None
        self._of_former_peers += link.strangers
        self._egress.clear()
        if self._poller is not None:
            self._poller.unwatch(link.fileno())
        link.close()

    def _on_events(self, events: int) -> None:
        if self._link is not None and not self._egress.is_empty:
            try:
                self._egress.drain(self._link.send)
            except OSError:
                self._disconnect("left")
        self._on_frames()

    def _set_events(self) -> None:
        """Tell the poller, if what has to be waited for has changed."""
        if self._link is None or self._poller is None:
            return
        events = self._link.events(frames_wait=not self._egress.is_empty)
        if events != self._events:
            self._events = events
            self._poller.change(self._link.fileno(), events)

    def _sort_out(self, frames: list[bytes]) -> list[bytes]:
        """Count frames, and leave out those of bad length."""
        good = [frame for frame in frames if MIN_FRAME_BYTES <= len(frame) <= MAX_FRAME_BYTES]
        if len(good) != len(frames):
            self.stats.rx_too_short += sum(len(frame) < MIN_FRAME_BYTES for frame in frames)
            self.stats.rx_too_long += sum(len(frame) > MAX_FRAME_BYTES for frame in frames)
        self.stats.rx_frames += len(good)
        self.stats.rx_bytes += sum(map(len, good))
        return good


def _nothing() -> None:
    """Where frames go before the port is attached: it has none then."""


def _listen(host: str, udp_port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, udp_port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        _prepare(listener)
        # Another switch may not share the port: only then is it this one's.
        listener.bind(address)
        _share(listener)
    except OSError:
        listener.close()
        raise
    return listener


def _socket_for(
    listener: socket.socket, own: tuple[str, int], peer: tuple[str, int]
) -> socket.socket:
    """A socket at the listener's own port, which takes what comes from `peer`."""
    sock = socket.socket(listener.family, socket.SOCK_DGRAM)
    try:
        _prepare(sock)
        _share(sock)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        sock.bind(own)
        sock.connect(peer)
    except OSError:
        sock.close()
        raise
    return sock


def _share(sock: socket.socket) -> None:
    """Let sockets of this user be bound to the same port; a connected one comes first."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    never_cut_up(sock)
