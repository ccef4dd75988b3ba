# SPDX-License-Identifier: Apache-2.0
"""A port on a UDP socket, for workers anywhere that IP reaches, without root or cables.

The port has one peer at a time. A handshake admits it (`HandshakeServer` in
native/p4reduce_native/udp_handshake.py) and proves its address, and that it has the key if there is
one. Its datagrams then arrive at a connected socket and carry a token. Other datagrams are counted
and have no effect, with two exceptions. A peer that restarts at the same address is admitted by its
new handshake. A peer whose address changed behind a NAT must return a nonce from the new address
(RFC 9000, section 8.2), and is then served there.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import os
import socket
import time
from dataclasses import dataclass, replace

from p4reduce_common.host_port import LAST_PORT, format_host_port, parse_host_port
from p4reduce_native.link import Link
from p4reduce_native.loop import Loop, LoopPort, PortEvent, PortKind
from p4reduce_native.udp_handshake import (
    TOKEN_BYTES,
    HandshakeResult,
    HandshakeServer,
    never_cut_up,
)

from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.core import Core
from p4reduce_switch.ports.peer_port import PeerListener, grow_buffers
from p4reduce_switch.ports.place import PortOptions, PortPlace, PortSpec
from p4reduce_switch.ports.port import PortError, PortStats, SwitchPort

log = logging.getLogger(__name__)

GONE_AFTER = 10
"""Seconds without a word from the peer, although it is asked, until it counts as gone."""

_HANDSHAKES = 64  # of one iteration, so that a flood of them does not stop the port's frames

_CHALLENGE_S = 0.2  # between two questions whether the peer has moved
_PING, _PONG = b"\1\0\0\0", b"\2\0\0\0"  # types of datagrams, behind the token

_Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class UdpPlace(PortPlace):
    """A host's name or address, and a UDP port (0: any free one)."""

    host: str
    udp_port: int

    scheme = "udp:"
    form = "udp:HOST:PORT"
    purpose = "for workers anywhere"

    @classmethod
    def parse(cls, where: str) -> UdpPlace:
        try:
            return cls(*parse_host_port(where, f"NUMBER={cls.form}"))
        except ValueError as error:
            raise ValueError(f"has no address: {error}") from None

    def __str__(self) -> str:
        return f"{self.scheme}{format_host_port(self.host, self.udp_port)}"

    @property
    def is_unique(self) -> bool:
        return self.udp_port != 0

    def after(self, steps: int) -> UdpPlace:
        if not self.udp_port:
            return self
        if self.udp_port + steps > LAST_PORT:
            raise ValueError(f"needs UDP port {self.udp_port + steps}; {LAST_PORT} is the last")
        return replace(self, udp_port=self.udp_port + steps)

    def open(self, spec: PortSpec, options: PortOptions) -> SwitchPort:
        return UdpPort(spec, options.udp_key, options.captures, options.core)

    def at_core(self, core: int) -> UdpPlace:
        return self


@dataclass
class _PathChallenge:
    """The peer may have another address, where it was asked for a nonce."""

    address: _Address
    nonce: bytes
    asked: float


class UdpPort(PeerListener):
    """A port on a UDP socket: the handshake, and which peer has the port.

    Args:
        spec: a port at a `UdpPlace`.
        key: the key that workers must know; empty: none.
        captures: how frames are captured, or None.
        core: the core that it belongs to; other cores have their own sockets there.

    Raises:
        PortError: nothing can listen there, or the capture cannot be written.
    """

    def __init__(
        self,
        spec: PortSpec,
        key: bytes = b"",
        captures: Captures | None = None,
        core: Core | None = None,
    ) -> None:
        assert isinstance(spec.place, UdpPlace)
        super().__init__(spec, log, names_peer=True)
        core = core or Core()
        self._admission = HandshakeServer(key, core.number, core.count)
        self._token = b""  # the peer's
        self._peer_address: _Address | None = None
        self._challenge: _PathChallenge | None = None
        self._path_bytes = self._too_narrow = 0  # as last logged
        self._strangers = 0  # of the listener; the loop counts those of its peers
        address = spec.place
        try:
            if self.number in core.listeners:
                self._listener = socket.socket(fileno=core.listeners[self.number])
                self._listener.setblocking(False)
            else:
                self._listener = listen_at(address.host, address.udp_port)
        except OSError as error:
            raise PortError(f"port {spec}: {error.strerror or error}") from None
        own = self._listener.getsockname()
        if address.udp_port == 0:
            self.description = str(replace(spec, place=replace(address, udp_port=own[1])))
        is_local = ipaddress.ip_address(own[0].partition("%")[0]).is_loopback
        if not key and not is_local and core.number == 0:
            log.warning(
                "port %s has no key: whoever reaches it may become its worker (--udp-key-file)",
                self.description,
            )
        self._open_capture(captures)

    @property
    def stats(self) -> PortStats:
        stats = super().stats
        stats.rx_stranger += self._strangers
        return stats

    def poll_events(self) -> PortEvent:
        event = super().poll_events()
        link = self._in_loop.link
        if (
            event is PortEvent.CONTROL_MESSAGE
            and link is not None
            and self._peer_address is not None
        ):
            self._answer(link.control_message(), self._peer_address)
        return event

    def flush(self) -> None:
        """Once per second: drop a peer that is silent, and log changes of its path."""
        link = self._in_loop.link
        if link is not None and link.keepalive() > GONE_AFTER:
            self._disconnect(f"has not been heard for {GONE_AFTER} s")
        elif link is not None:
            self._report_path(link)

    # -- In the data plane's thread --------------------------------------------------------------

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        return loop.add_port(PortKind.UDP, self.number, capture_fd)

    def _on_arrival(self) -> None:
        for _ in range(_HANDSHAKES):
            try:
                message, address = self._listener.recvfrom(65536)
            except OSError:
                return
            if self._token and hmac.compare_digest(message[:TOKEN_BYTES], self._token):
                self._on_path_challenge(message[TOKEN_BYTES:], address)
            else:
                self._answer(message, address)

    def _answer(self, message: bytes, address: _Address) -> None:
        """A message of a handshake; from the peer's own address, it was started again."""
        again = address == self._peer_address
        is_free = not self._who or again
        answer, entered = self._admission.answer(message, address, is_free=is_free)
        if not answer:
            self._strangers += 1
            return
        if entered is not None:
            if again:
                self._disconnect("was started again")
            if not self._accept(address, entered):
                return
        elif self._who and not again:
            self._probe_peer()
        self._send(answer, address)

    def _probe_peer(self) -> None:
        """Somebody else wants the port: a peer that is gone silently is found sooner, by its host's
        ICMP messages."""
        link = self._in_loop.link
        if link is not None:
            with contextlib.suppress(OSError):
                os.write(link.fileno(), self._token + _PING)

    def _on_path_challenge(self, rest: bytes, address: _Address) -> None:
        """The peer's token came from another address than the peer's."""
        challenge = self._challenge
        if challenge and challenge.address == address and rest == _PONG + challenge.nonce:
            self._migrate(address)
            return
        self._strangers += 1
        now = time.monotonic()
        question = _PING + os.urandom(8)
        if len(rest) < len(question) or (challenge and now < challenge.asked + _CHALLENGE_S):
            return
        # Each question has a nonce of its own, so an answer proves who receives there now. It is
        # not longer than what came.
        self._challenge = _PathChallenge(address, question[len(_PING) :], now)
        self._send(self._token + question, address)

    def _migrate(self, address: _Address) -> None:
        """Serve the peer at another address."""
        link = self._in_loop.link
        if link is None:
            return
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            try:
                same.connect(address)
            except OSError as error:
                self._warnings.warning("port %s: cannot follow: %s", self.description, error)
                return
        former, self._who = self._who, format_host_port(*address[:2])
        self._peer_address, self._challenge = address, None
        log.info("port %s: its peer %s is at %s now", self.description, former, self._who)

    def _report_path(self, link: Link) -> None:
        """Log it once when datagrams have to be smaller than before, or may be larger."""
        counts = link.datagram_counts
        if counts.path_bytes != self._path_bytes:
            less = counts.path_bytes < self._path_bytes
            log.log(
                logging.WARNING if less else logging.INFO,
                "port %s: datagrams of up to %d bytes now, not %d, to %s%s",
                self.description,
                counts.path_bytes,
                self._path_bytes,
                self._who,
                ": larger ones are lost on the path" if less else "",
            )
            self._path_bytes = counts.path_bytes
        if counts.path_too_narrow != self._too_narrow:
            self._too_narrow = counts.path_too_narrow
            self._warnings.warning(
                "port %s: no datagram of %d bytes reaches %s, which is the least for a frame: "
                "a host or router on the path takes smaller ones only, or the peer does not answer",
                self.description,
                counts.path_bytes,
                self._who,
            )

    def _send(self, answer: bytes, address: _Address) -> None:
        try:
            self._listener.sendto(answer, address)
        except OSError as error:
            log.debug("port %s: no answer to %s: %s", self.description, address, error)

    def _disconnect(self, why: str) -> None:
        super()._disconnect(why)
        self._token, self._peer_address, self._challenge = b"", None, None

    def _accept(self, address: _Address, entered: HandshakeResult) -> bool:
        with contextlib.ExitStack() as undo:  # undoes nothing that has found an owner
            try:
                peer = undo.enter_context(_socket_for(self._listener, address))
                link = Link.over_datagrams(peer, entered)
                undo.callback(link.close)
                self._in_loop.attach_link(link)
            except OSError as error:
                self._warnings.warning("port %s: cannot accept a peer: %s", self.description, error)
                return False
        self._who = format_host_port(*address[:2])
        self._token, self._peer_address = entered.token, address
        self._path_bytes, self._too_narrow = entered.size, 0
        log.info(
            "port %s is up: peer is %s, datagrams of up to %d bytes",
            self.description,
            self._who,
            entered.size,
        )
        return True


def listen_at(host: str, udp_port: int) -> socket.socket:
    """Return a socket at a UDP port that no other process has. Further ones may `join_port`. Raises
    OSError."""
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


def join_port(listener: socket.socket) -> socket.socket:
    """Return a further socket at a listener's port. Raises OSError."""
    sock = socket.socket(listener.family, socket.SOCK_DGRAM)
    try:
        _prepare(sock)
        _share(sock)
        sock.bind(listener.getsockname())
    except OSError:
        sock.close()
        raise
    return sock


def _socket_for(listener: socket.socket, peer: tuple[str, int]) -> socket.socket:
    """A socket at the listener's own port, which takes what comes from `peer`."""
    sock = join_port(listener)
    try:
        grow_buffers(sock)
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
