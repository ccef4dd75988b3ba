# SPDX-License-Identifier: Apache-2.0
"""A port on a UDP socket: for workers anywhere that IP reaches, without root and without a cable.

One peer at a time. It is let in by a handshake (`Doorkeeper` in
native/p4reduce_native/udp_handshake.py), which shows that it is where it says it is, and that it
has the key where there is one. From there on its datagrams come to a connected socket of its own
and carry a token; whatever else comes is counted and has no effect.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from abc import abstractmethod

from p4reduce_native.datagrams import DatagramLink
from p4reduce_native.link import Link, why_not
from p4reduce_native.udp_handshake import Doorkeeper, Entered, never_cut_up

from p4reduce_switch.ports.listener import PEER_BUFFER_BYTES, PeerListener
from p4reduce_switch.ports.peer import DatagramPeer, LinkPeer
from p4reduce_switch.ports.peer_port import PeerPort
from p4reduce_switch.ports.port import PortError, PortSpec

__all__ = ["GONE_AFTER", "UdpListener", "UdpPort"]

log = logging.getLogger(__name__)

GONE_AFTER = 10
"""So many seconds a peer may say nothing, though it is asked."""

_HANDSHAKES = 64  # of one turn, so that a flood of them does not stop the port's frames


class UdpListener(PeerListener):
    """What every UDP port does in Python: the handshake, and whose turn it is.

    Args:
        spec: with its `udp_address`.
        key: which workers have to know; empty: none.

    Raises:
        PortError: nothing can listen there.
    """

    def __init__(self, spec: PortSpec, key: bytes = b"") -> None:
        assert spec.udp_address is not None
        super().__init__(spec, log, names_peer=True)
        self._doorkeeper = Doorkeeper(key)
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

    def flush(self) -> None:
        """See whether the peer is there still."""
        if self._who and self._poke() > GONE_AFTER:
            self._disconnect(f"has not been heard for {GONE_AFTER} s")

    # -- In the data plane's thread --------------------------------------------------------------

    @abstractmethod
    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        """Serve a peer, whose socket is the port's from now on."""

    @abstractmethod
    def _poke(self) -> int:
        """Ask the peer for a word, as `p4r_link_poke` does."""

    def _on_arrival(self, events: int) -> None:
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


class UdpPort(PeerPort, UdpListener):
    """A port that Python serves. Opened by the constructor. Raises PortError, as `UdpListener`."""

    def __init__(self, spec: PortSpec, key: bytes = b"") -> None:
        super().__init__(spec, key)
        self._begin()
        self._link: Link | DatagramLink | None = None  # the peer's
        self._of_former_peers = 0

    def poll_stats(self) -> None:
        own = 0 if self._link is None else self._link.strangers
        self.stats.rx_stranger = self._strangers + self._of_former_peers + own

    # -- In the data plane's thread --------------------------------------------------------------

    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        if why_not() is None:
            self._link = link = Link.over_datagrams(peer, entered)
            self._serve(LinkPeer(link, self.stats))
        else:
            self._link = slow = DatagramLink(peer, entered)
            self._serve(DatagramPeer(slow, self.stats))

    def _poke(self) -> int:
        assert self._link is not None
        return self._link.poke()

    def _disconnecting(self) -> None:
        assert self._link is not None
        self._of_former_peers += self._link.strangers
        self._link = None
        super()._disconnecting()


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
            sock.setsockopt(socket.SOL_SOCKET, option, PEER_BUFFER_BYTES)
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
