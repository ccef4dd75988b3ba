# SPDX-License-Identifier: Apache-2.0
"""Ports whose frames go through C: Python opens and closes the sockets, and writes the log."""

from __future__ import annotations

import os
import socket
from abc import abstractmethod
from typing import Protocol

from p4reduce_native.link import Link
from p4reduce_native.loop import Loop, LoopPort, News
from p4reduce_native.udp_handshake import Entered

from p4reduce_switch.ports.listener import OnePeer
from p4reduce_switch.ports.packet import InterfaceSocket
from p4reduce_switch.ports.pcap import Captures
from p4reduce_switch.ports.peer import why_gone
from p4reduce_switch.ports.port import OpenPort, Poller, PortSpec, PortStats
from p4reduce_switch.ports.udp import UdpListener
from p4reduce_switch.ports.unix import UnixCaller, UnixListener

__all__ = ["NativeCallingPort", "NativePacketPort", "NativePort", "NativeUdpPort", "NativeUnixPort"]


class NativePort(OpenPort, Protocol):
    """A port of `NativeDataPlane`."""

    def join(self, loop: Loop, poller: Poller) -> None:
        """Begin to be served; once."""

    def look_for_news(self) -> None:
        """Handle what the C part has to tell."""


class _ServedInC(OnePeer):
    """What ports with a peer have in common; beside the listener of a kind of socket.

    The constructor of such a class calls `_begin`.
    """

    def _begin(self, captures: Captures | None) -> None:
        self._served: LoopPort | None = None
        self._capture = _Capture()
        self._capture.open(self, captures)

    @property
    def stats(self) -> PortStats:
        return PortStats() if self._served is None else PortStats(*self._served.counts)

    def poll_stats(self) -> None:
        """All counts are kept here."""

    def join(self, loop: Loop, poller: Poller) -> None:
        self._served = self._join(loop, self._capture.take())
        self._capture.split(self._served)
        self._take_peers(poller)

    def look_for_news(self) -> None:
        news, error = self._in_c.take_news()
        if news is News.DOWN:
            self._disconnect(why_gone(OSError(error, os.strerror(error))))

    def close(self) -> None:
        super().close()
        self._capture.close()

    @abstractmethod
    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        """Make it a port of a loop."""

    @property
    def _in_c(self) -> LoopPort:
        assert self._served is not None, "it has not joined a loop"
        return self._served

    def _disconnecting(self) -> None:
        self._in_c.detach()


class NativeUnixPort(_ServedInC, UnixListener):
    """A port on a Unix socket; see `ports/unix.py`. `close` removes the socket file.

    Args:
        captures: where all frames are written, or None.

    Raises:
        PortError: the path is in use, not writable or too long, its directory is missing, or the
            capture cannot be written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        super().__init__(spec)
        self._loop: Loop | None = None
        self._begin(captures)

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        self._loop = loop
        return loop.add_unix_port(self.number, capture_fd)

    def _connected(self, peer: socket.socket) -> None:
        self._in_c.attach(peer.detach())

    def _hear_out(self) -> None:
        assert self._loop is not None
        self._loop.hear_out(self._in_c)
        self.look_for_news()


class NativeCallingPort(_ServedInC, UnixCaller):
    """A port at whose other end another switch listens; see `ports/unix.py`.

    Args:
        captures: where all frames are written, or None.

    Raises:
        PortError: the capture cannot be written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        super().__init__(spec)
        self._begin(captures)

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        return loop.add_unix_port(self.number, capture_fd)

    def _connected(self, peer: socket.socket) -> None:
        self._in_c.attach(peer.detach())


class NativeUdpPort(_ServedInC, UdpListener):
    """A port on a UDP socket; see `ports/udp.py`.

    Args:
        key: which workers have to know; empty: none.
        captures: where all frames are written, or None.

    Raises:
        PortError: nothing can listen there, or the capture cannot be written.
    """

    def __init__(self, spec: PortSpec, key: bytes = b"", captures: Captures | None = None) -> None:
        super().__init__(spec, key)
        self._link: Link | None = None  # the loop's, which frees it
        self._begin(captures)

    @property
    def stats(self) -> PortStats:
        stats = super().stats
        stats.rx_stranger += self._strangers
        return stats

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        return loop.add_udp_port(self.number, capture_fd)

    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        self._link = Link.over_datagrams(peer, entered)
        self._in_c.attach_link(self._link.pointer)

    def _poke(self) -> int:
        return 0 if self._link is None else self._link.poke()

    def _disconnecting(self) -> None:
        self._link = None
        super()._disconnecting()


class NativePacketPort(InterfaceSocket):
    """A port on an interface; see `ports_packet`.

    Args:
        captures: where all frames are written, or None.

    Raises:
        PortError: there is no such interface, no right to open it, or the capture cannot be
            written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        super().__init__(spec)
        self._offload = spec.offload
        self._served: LoopPort | None = None
        self._overruns = 0
        self._capture = _Capture()
        self._capture.open(self, captures)

    @property
    def stats(self) -> PortStats:
        stats = PortStats() if self._served is None else PortStats(*self._served.counts)
        stats.rx_overrun = self._overruns
        return stats

    def join(self, loop: Loop, poller: Poller) -> None:
        self._served = loop.add_packet_port(
            self.number, self._max_bytes, self._capture.take(), offload=self._offload
        )
        self._capture.split(self._served)
        self._served.attach(self._socket.fileno())

    def look_for_news(self) -> None:
        assert self._served is not None
        news, error = self._served.take_news()
        if news is News.ERROR:
            self._warn(OSError(error, os.strerror(error)))

    def poll_stats(self) -> None:
        self._overruns += self._overrun()

    def flush(self) -> None:
        """The loop writes captures itself."""

    def close(self) -> None:
        if self._served is not None:
            self.poll_stats()
            self._served.detach()
        self._socket.close()
        self._capture.close()


class _Capture:
    """The files of a port's capture, until the loop takes them."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def open(self, port: OpenPort, captures: Captures | None) -> None:
        """Open the files; where that fails the port is closed."""
        if captures is None:
            return
        try:
            for file in captures.open(port):
                with file:
                    self._fds.append(os.dup(file.fileno()))
        except Exception:
            port.close()
            raise

    def take(self) -> int:
        """The file of what comes in, or of everything; -1 if there is none."""
        return self._fds.pop(0) if self._fds else -1

    def split(self, served: LoopPort) -> None:
        """Hand over the file of what leaves, if there is one."""
        if self._fds:
            served.capture_out(self._fds.pop(0))

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
