# SPDX-License-Identifier: Apache-2.0
"""Ports whose frames go through C: Python opens and closes the sockets, and writes the log."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Protocol

from p4reduce_native.link import Link
from p4reduce_native.loop import Loop, LoopPort, News
from p4reduce_native.udp_handshake import Entered

from p4reduce_switch.ports.packet import InterfaceSocket
from p4reduce_switch.ports.pcap import open_capture
from p4reduce_switch.ports.port import OpenPort, Poller, PortSpec, PortStats
from p4reduce_switch.ports.udp import UdpListener
from p4reduce_switch.ports.unix import UnixListener, why_gone

__all__ = ["NativePacketPort", "NativePort", "NativeUdpPort", "NativeUnixPort"]


class NativePort(OpenPort, Protocol):
    """A port of `NativeDataPlane`."""

    def join(self, loop: Loop, poller: Poller) -> None:
        """Begin to be served; once."""

    def look_for_news(self) -> None:
        """Handle what the C part has to tell."""


class NativeUnixPort(UnixListener):
    """A port on a Unix socket; see `ports_unix`. `close` removes the socket file.

    Args:
        capture_dir: where a capture of all frames is written, or None.

    Raises:
        PortError: the path is in use, not writable or too long, its directory is missing, or the
            capture cannot be written.
    """

    def __init__(self, spec: PortSpec, capture_dir: Path | None = None) -> None:
        super().__init__(spec)
        self._capture = _Capture()
        self._loop: Loop | None = None
        self._served: LoopPort | None = None
        self._capture.open(self, capture_dir)

    @property
    def stats(self) -> PortStats:
        return PortStats() if self._served is None else PortStats(*self._served.counts)

    def join(self, loop: Loop, poller: Poller) -> None:
        self._loop = loop
        self._served = loop.add_unix_port(self.number, self._capture.take())
        self._accept_from(poller)

    def poll_stats(self) -> None:
        """All counts are kept here."""

    def look_for_news(self) -> None:
        assert self._served is not None
        news, error = self._served.take_news()
        if news is News.DOWN:
            self._disconnect(why_gone(OSError(error, os.strerror(error))))

    def close(self) -> None:
        super().close()
        self._capture.close()

    def _connected(self, peer: socket.socket) -> None:
        assert self._served is not None
        self._served.attach(peer.detach())

    def _hear_out(self) -> None:
        assert self._loop is not None
        assert self._served is not None
        self._loop.hear_out(self._served)
        self.look_for_news()

    def _disconnecting(self) -> None:
        assert self._served is not None
        self._served.detach()


class NativeUdpPort(UdpListener):
    """A port on a UDP socket; see `ports/udp.py`.

    Args:
        key: which workers have to know; empty: none.
        capture_dir: where a capture of all frames is written, or None.

    Raises:
        PortError: nothing can listen there, or the capture cannot be written.
    """

    def __init__(self, spec: PortSpec, key: bytes = b"", capture_dir: Path | None = None) -> None:
        super().__init__(spec, key)
        self._capture = _Capture()
        self._served: LoopPort | None = None
        self._link: Link | None = None  # the loop's, which frees it
        self._capture.open(self, capture_dir)

    @property
    def stats(self) -> PortStats:
        stats = PortStats() if self._served is None else PortStats(*self._served.counts)
        stats.rx_stranger += self._strangers
        return stats

    def join(self, loop: Loop, poller: Poller) -> None:
        self._served = loop.add_udp_port(self.number, self._capture.take())
        self._let_in_from(poller)

    def poll_stats(self) -> None:
        """All counts are kept here."""

    def look_for_news(self) -> None:
        assert self._served is not None
        news, _ = self._served.take_news()
        if news is News.DOWN:
            self._link = None
            self._disconnect("left")

    def close(self) -> None:
        super().close()
        self._capture.close()

    def _connected(self, peer: socket.socket, entered: Entered) -> None:
        assert self._served is not None
        self._link = Link.over_datagrams(peer, entered)
        self._served.attach_link(self._link.pointer)

    def _poke(self) -> int:
        return 0 if self._link is None else self._link.poke()

    def _disconnecting(self) -> None:
        assert self._served is not None
        self._link = None
        self._served.detach()


class NativePacketPort(InterfaceSocket):
    """A port on an interface; see `ports_packet`.

    Args:
        capture_dir: where a capture of all frames is written, or None.

    Raises:
        PortError: there is no such interface, no right to open it, or the capture cannot be
            written.
    """

    def __init__(self, spec: PortSpec, capture_dir: Path | None = None) -> None:
        super().__init__(spec)
        self._offload = spec.offload
        self._served: LoopPort | None = None
        self._overruns = 0
        self._capture = _Capture()
        self._capture.open(self, capture_dir)

    @property
    def stats(self) -> PortStats:
        stats = PortStats() if self._served is None else PortStats(*self._served.counts)
        stats.rx_overrun = self._overruns
        return stats

    def join(self, loop: Loop, poller: Poller) -> None:
        self._served = loop.add_packet_port(
            self.number, self._max_bytes, self._capture.take(), offload=self._offload
        )
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
    """A capture's file, until the loop takes it."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self, port: OpenPort, directory: Path | None) -> None:
        """Open the file in a directory; where that fails the port is closed."""
        if directory is None:
            return
        try:
            with open_capture(port, directory) as file:
                self._fd = os.dup(file.fileno())
        except Exception:
            port.close()
            raise

    def take(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self.take())
