# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix or UDP port, and how its frames are read and written.

`SocketPeer` is Python and takes one frame per message. `LinkPeer` is machine code: on a Unix socket
it speaks with any peer, and agrees with one that can on batches or on shared memory. `DatagramPeer`
is Python's way over UDP.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from p4reduce_native.datagrams import DatagramLink
from p4reduce_native.link import Kind, Link, is_hello

from p4reduce_switch.ports.batch import FrameBatches
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, MIN_FRAME_BYTES, PortStats

__all__ = ["GONE", "DatagramPeer", "LinkPeer", "Peer", "SocketPeer", "has_gone", "why_gone"]

# By the names of poll, whose values are epoll's: a system without epoll can import this, too.
GONE = select.POLLHUP | select.POLLERR | 0x2000  # EPOLLRDHUP


class Peer(Protocol):
    """A connected peer. Whatever raises OSError has found that it is of no use any more."""

    def fileno(self) -> int: ...

    def hung_up(self) -> None:
        """Told by epoll; what it sent may still have to be read."""

    def receive(self) -> Sequence[bytes]: ...

    def send(self, frames: Sequence[bytes]) -> int:
        """Send the first frames, and return how many; OSError EAGAIN: there is no room."""

    def events(self, *, frames_wait: bool) -> int:
        """Return what to wait for by epoll, if frames wait for room."""

    def close(self) -> None: ...


class SocketPeer:
    """One frame per message, by Python. `sock` is its own from now on."""

    def __init__(self, sock: socket.socket, batches: FrameBatches, stats: PortStats) -> None:
        self._socket = sock
        self._batches = batches
        self._stats = stats
        self._gone = False
        self._has_heard = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def hung_up(self) -> None:
        self._gone = True

    def receive(self) -> Sequence[bytes]:
        # An empty message and the end look the same, but for the hang-up.
        frames: Sequence[bytes]
        frames, _ = self._batches.receive(self.fileno(), self._stats, gone=self._has_gone)
        if frames and not self._has_heard:
            self._has_heard = True
            frames = self._without_hello(frames)
        if self._gone and not frames:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        return frames

    def send(self, frames: Sequence[bytes]) -> int:
        return self._batches.send(self.fileno(), frames)

    def events(self, *, frames_wait: bool) -> int:
        return select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLOUT if frames_wait else 0)

    def close(self) -> None:
        self._socket.close()

    def _without_hello(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """The first messages of all. A hello is no frame; without an answer the peer goes on alone.

        It is counted as it always was by those who know none: as too short for a frame.
        """
        hello = frames[0]
        if not is_hello(hello):
            return frames
        self._stats.rx_frames -= 1
        self._stats.rx_bytes -= len(hello)
        self._stats.rx_too_short += 1
        return frames[1:]

    def _has_gone(self) -> bool:
        """Whether the peer hung up, be it since epoll was asked."""
        if not self._gone:
            self._gone = has_gone(self.fileno())
        return self._gone


AnyLink = TypeVar("AnyLink", Link, DatagramLink)


class _OverLink(Generic[AnyLink]):
    """A link, which is its own from now on."""

    def __init__(self, link: AnyLink, stats: PortStats) -> None:
        self._link: AnyLink = link
        self._stats = stats

    def fileno(self) -> int:
        return self._link.fileno()

    def hung_up(self) -> None:
        """The link finds it out by itself, behind all frames; UDP has no such thing."""

    def send(self, frames: Sequence[bytes]) -> int:
        return self._link.send(frames)

    def events(self, *, frames_wait: bool) -> int:
        return self._link.events(frames_wait=frames_wait)

    def close(self) -> None:
        self._link.close()


class LinkPeer(_OverLink[Link]):
    """A link in C."""

    def __init__(self, link: Link, stats: PortStats) -> None:
        super().__init__(link, stats)
        self._bad = (0, 0)  # too short, too long: what of the link's counts is in `stats`

    @property
    def kind(self) -> Kind:
        return self._link.kind

    def receive(self) -> Sequence[bytes]:
        frames = self._link.receive()
        stats, counts = self._stats, self._link.counts
        bad = (counts.rx_too_short, counts.rx_too_long)
        if bad != self._bad:
            stats.rx_too_short += bad[0] - self._bad[0]
            stats.rx_too_long += bad[1] - self._bad[1]
            self._bad = bad
        stats.rx_frames += len(frames)
        stats.rx_bytes += sum(map(len, frames))
        return frames


class DatagramPeer(_OverLink[DatagramLink]):
    """A link over UDP in Python."""

    def receive(self) -> Sequence[bytes]:
        frames, stats = self._link.receive(), self._stats
        good = [frame for frame in frames if MIN_FRAME_BYTES <= len(frame) <= MAX_FRAME_BYTES]
        if len(good) != len(frames):
            stats.rx_too_short += sum(len(frame) < MIN_FRAME_BYTES for frame in frames)
            stats.rx_too_long += sum(len(frame) > MAX_FRAME_BYTES for frame in frames)
        stats.rx_frames += len(good)
        stats.rx_bytes += sum(map(len, good))
        return good


def why_gone(error: OSError) -> str:
    """How a log line about a peer that is lost ends."""
    if error.errno == errno.EPROTO:
        return "is cut off: it wrote what cannot be into the shared memory"
    return "left" if error.errno == errno.EPIPE else f"left: {error.strerror}"


def has_gone(fd: int) -> bool:
    """Whether the peer of a connected socket has hung up."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLRDHUP)
    return any(events & GONE for _, events in poll.poll(0))
