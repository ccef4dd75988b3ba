# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a transport, and what the two on sockets have in common."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.batch import ReceiveBatch, SendBatch
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer

RECEIVE_BATCH = 128
"""Frames taken from the kernel by one call."""

BUFFER_BYTES = 8 << 20
"""Asked of the kernel for each direction; its own limits may leave less of it."""

Indices = npt.NDArray[np.int64]


class Transport(Protocol):
    """Whole Ethernet frames in batches. All but `wake` is for one thread."""

    @property
    def description(self) -> str:
        """For people: "eth0" or "unix:/path"."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Own addresses; None where the transport has none and any will do."""

    @property
    def received(self) -> FrameBuffer:
        """Where `receive` puts frames; they stay until its next call."""

    @property
    def dropped(self) -> int:
        """Frames lost on this host so far because nobody read them in time."""

    @property
    def lossless(self) -> bool:
        """Whether all frames get to the switch and back, unless one of the ends is gone."""

    def receive(self) -> int:
        """Take what is there, without waiting. Returns how many frames are in `received`."""

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        """Send some rows of a buffer in order, without waiting.

        Returns how many the kernel took; the others have to be sent again once there is room.
        """

    def wait(self, timeout: float, *, writable: bool = False) -> None:
        """Return when frames may be there, `wake` was called or `timeout` seconds are over.

        With `writable` also when there is room to send again.
        """

    def wake(self) -> None:
        """End a `wait`, from any thread."""

    def close(self) -> None:
        """Release everything. May be called twice."""


_FULL = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_NO_BUFFERS_PAUSE = 0.0005  # seconds; poll() does not tell when a device's queue has room


class SocketTransport:
    """Batches of frames on a connected or bound socket."""

    lossless = False

    def __init__(self, description: str, sock: socket.socket) -> None:
        self._description = description
        self._socket = sock
        sock.setblocking(False)
        self._received = FrameBuffer(RECEIVE_BATCH)
        self._incoming = ReceiveBatch(self._received)
        self._outgoing = SendBatch(RECEIVE_BATCH)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._device_full = False
        self._closed = False

    @property
    def description(self) -> str:
        return self._description

    @property
    def received(self) -> FrameBuffer:
        return self._received

    @property
    def socket(self) -> socket.socket:
        """For whoever exchanges frames by it in another way; stays this transport's."""
        return self._socket

    def receive(self) -> int:
        count, error = self._incoming.receive(self._socket.fileno())
        if error in _FULL:
            return 0
        if error:
            raise self._broken(error)
        return count

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        total = len(rows)
        done = 0
        while done < total:
            count, error = self._outgoing.send(
                self._socket.fileno(), buffer, rows[done : done + RECEIVE_BATCH]
            )
            if error in _FULL:
                self._device_full = error == errno.ENOBUFS
                break
            if error:
                raise self._broken(error)
            done += count
        return done

    def wait(self, timeout: float, *, writable: bool = False) -> None:
        if writable:
            if self._device_full:
                self._device_full = False
                timeout = min(timeout, _NO_BUFFERS_PAUSE)
            else:
                self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            ready = self._poll.poll(math.ceil(max(timeout, 0.0) * 1000))
        finally:
            if writable:
                self._poll.modify(self._socket, select.POLLIN)
        for fd, _ in ready:
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)

    def wake(self) -> None:
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.close()
            os.close(self._wake_fd)

    def _broken(self, code: int) -> SwitchUnreachableError:
        return SwitchUnreachableError(
            f"cannot exchange frames with the switch by {self._description}: {os.strerror(code)}"
        )
