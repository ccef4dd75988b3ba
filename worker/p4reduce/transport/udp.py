# SPDX-License-Identifier: Apache-2.0
"""A transport to a port of the embedded switch by UDP: wherever IP reaches, without root."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping

import numpy as np
from p4reduce_common.host_port import split_host_port
from p4reduce_native.datagrams import DatagramLink
from p4reduce_native.link import Link, why_not
from p4reduce_native.udp_handshake import (
    HandshakeRefusedError,
    HandshakeResult,
    Refusal,
    ask,
    enter,
    key_of,
    never_cut_up,
    read_key,
)

from p4reduce import variables
from p4reduce.errors import ConfigurationError, SwitchUnreachableError
from p4reduce.inherited import keep_from_children
from p4reduce.transport.base import BUFFER_BYTES, RECEIVE_BATCH, Indices
from p4reduce.transport.link import FramesOverLink, broken
from p4reduce.transport.port_type import Look, PortType
from p4reduce.wire.frames import FrameBuffer

CORE_MARK = "#"
"""Before the number of one of the switch's further cores, in an address: "host:7001#1"."""

_ANSWER_SECONDS = 3.0
"""How long one attempt may take; `init` makes as many as its timeout allows."""


def parse_udp(text: str) -> tuple[str, int]:
    """Parse "host:7001", "[::1]:7001" or "host:7001+3" (UDP port 7004).

    Raises:
        ConfigurationError: it does not read so.
    """
    try:
        host, port = split_host_port(text)
    except ValueError as error:
        raise ConfigurationError(f"interface 'udp:{text}': {error}") from None
    parts = port.split("+")
    if not host or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(
            f"interface 'udp:{text}' is not of the form udp:HOST:PORT, or udp:HOST:7001+{{rank}}"
        )
    number = sum(map(int, parts))
    if not 0 < number <= 65535:
        raise ConfigurationError(f"interface 'udp:{text}': UDP port {number} is not 1 to 65535")
    return host, number


def ask_switch(place: tuple[str, int], seconds: float) -> None:
    """Ask the switch at a UDP port for an answer, and take no port of it.

    Raises:
        OSError: nobody listens there, or nobody answers.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.setblocking(False)
        never_cut_up(sock)
        sock.connect(where)
        ask(sock, time.monotonic() + seconds)


class UdpTransport(FramesOverLink):
    """A UDP transport in machine code.

    Args:
        address: as `parse_udp` reads it; a core of the switch may stand behind it.
        environ: has the key, if there is one.

    Raises:
        SwitchUnreachableError: nobody answers there, or the switch refuses this worker.
        ConfigurationError: the address, or the file of `$P4REDUCE_UDP_KEY_FILE`, is of no use.
    """

    shares_link = True

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        sock, entered = _connect(address, environ)
        super().__init__(f"udp:{address}", Link.over_datagrams(sock, entered))


class PythonUdpTransport:
    """A UDP transport in Python, also for other systems than Linux. See `UdpTransport`."""

    endpoint = None
    dropped = 0
    lossless = False
    shares_link = True
    link = None

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        self._description = f"udp:{address}"
        self._link = DatagramLink(*_connect(address, environ))
        self.received = FrameBuffer(RECEIVE_BATCH)
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self.wake_fd = self._woken.fileno()
        keep_from_children(self)

    def descriptors(self) -> Iterator[int]:
        yield self._link.fileno()

    def receive(self) -> int:
        try:
            frames = self._link.receive()
        except OSError as error:
            raise broken(self._description, error.errno or 0) from None
        for row, frame in enumerate(frames):
            self.received.put(row, frame)
        return len(frames)

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        frames = [buffer.get(row) for row in np.asarray(rows)]
        try:
            return self._link.send(frames) if frames else 0
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(frames)  # lost; `receive` decides whether the switch is
        except OSError as error:
            raise broken(self._description, error.errno or 0) from None

    def wait(self, timeout: float, *, writable: bool = False) -> bool:
        poll = select.poll()
        poll.register(self._link.fileno(), self._link.events(frames_wait=writable))
        if writable and self._link.pause:
            timeout = min(timeout, self._link.pause)
        poll.register(self._woken, select.POLLIN)
        woken = self.wake_fd in dict(poll.poll(max(timeout, 0.0) * 1000))
        if woken:
            with contextlib.suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass
        return woken

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so it wakes in any case; or closed
            self._waker.send(b"\0")

    def close(self) -> None:
        self._link.close()
        self._woken.close()
        self._waker.close()


def _open_udp(
    address: str, _udp_port: int, environ: Mapping[str, str]
) -> UdpTransport | PythonUdpTransport:
    """Open the faster one. Raises as `UdpTransport`."""
    return (UdpTransport if why_not() is None else PythonUdpTransport)(address, environ)


def _connect(address: str, environ: Mapping[str, str]) -> tuple[socket.socket, HandshakeResult]:
    at, _, core = address.partition(CORE_MARK)
    host, port = parse_udp(at)
    key = own_key(environ)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise SwitchUnreachableError(f"udp:{address}: {error.strerror or error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        never_cut_up(sock)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        sock.connect(where)
        return sock, enter(sock, key, time.monotonic() + _ANSWER_SECONDS, int(core or 0))
    except (OSError, HandshakeRefusedError) as error:
        sock.close()
        lasting = isinstance(error, HandshakeRefusedError) and error.refusal is Refusal.WRONG_KEY
        raise SwitchUnreachableError(f"udp:{address}: {_reason(error)}", lasting=lasting) from None


def own_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the key of `$P4REDUCE_UDP_KEY_FILE` or `$P4REDUCE_UDP_KEY`; empty if there is none.

    Raises:
        ConfigurationError: both are given, or one that is of no use.
    """
    path, text = environ.get(variables.UDP_KEY_FILE), environ.get(variables.UDP_KEY)
    if path and text:
        raise ConfigurationError(
            f"{variables.UDP_KEY_FILE} and {variables.UDP_KEY}: unset one of them"
        )
    try:
        return read_key(path) if path else key_of(text) if text else b""
    except ValueError as error:
        name = variables.UDP_KEY_FILE if path else variables.UDP_KEY
        raise ConfigurationError(f"{name}: {error}") from None


def _reason(error: OSError | HandshakeRefusedError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there; is the switch running, and does it have this port?"
    if isinstance(error, TimeoutError):
        return f"{error}; is the switch running, and does a firewall let UDP through?"
    return str(getattr(error, "strerror", None) or error)


def _look(address: str) -> Iterator[Look]:
    what = "UDP port"
    try:
        host, port = parse_udp(address)
        key = own_key()
        places = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except ConfigurationError as error:
        cure = "Set --interface or the environment as the message says."
        yield Look(what, str(error), cure)
    except OSError as error:
        cure = "See how the host of the switch is called: getent hosts HOST."
        yield Look(what, f"udp:{address}: {error.strerror or error}", cure)
    else:
        way = f"udp:{address} is UDP port {port} of {places[0][4][0]}"
        yield Look(what, f"{way}, {'with' if key else 'without'} a key")


UDP = PortType(
    "udp:",
    "udp:HOST:PORT",
    _open_udp,
    _look,
    at_core=lambda name, core: f"{name}{CORE_MARK}{core}",
    only_linux=False,
)
