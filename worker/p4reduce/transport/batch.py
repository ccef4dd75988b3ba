# SPDX-License-Identifier: Apache-2.0
"""recvmmsg and sendmmsg (see their man pages) on rows of a `FrameBuffer`.

The records that the kernel reads are numpy arrays, so that a batch of any size is prepared by a
handful of assignments. `ctypes.PyDLL` keeps the interpreter's lock: the calls never wait, and to
give the lock away would mean to win it back from whatever else computes in this process.
"""

from __future__ import annotations

import ctypes
import errno
import socket
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import FRAME_STRIDE
from p4reduce.wire.frames import MAX_FRAME_BYTES, FrameBuffer


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("length", ctypes.c_size_t))


class _MessageHeader(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_size_t),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_size_t),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_size_t),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _MessageHeader), ("length", ctypes.c_uint32))


_LIBC = ctypes.PyDLL(None, use_errno=True)
_SENDMMSG = _LIBC.sendmmsg
_SENDMMSG.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_RECVMMSG = _LIBC.recvmmsg
_RECVMMSG.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_void_p,
)
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class _Messages:
    def __init__(self, count: int) -> None:
        self.vectors: npt.NDArray[Any] = np.zeros(count, np.dtype(_IoVec))
        self._messages: npt.NDArray[Any] = np.zeros(count, np.dtype(_Message))
        self._messages["header"]["vectors"] = (
            self.vectors.ctypes.data + np.arange(count) * self.vectors.itemsize
        )
        self._messages["header"]["vector_count"] = 1
        self.address = self._messages.ctypes.data
        self.bases = self.vectors["base"]
        self.vector_lengths = self.vectors["length"]
        self.lengths = self._messages["length"]


class ReceiveBatch:
    """Fills a buffer from its first row on."""

    def __init__(self, buffer: FrameBuffer) -> None:
        self._buffer = buffer
        self._count = len(buffer)
        self._messages = _Messages(self._count)
        self._messages.bases[:] = buffer.address + np.arange(self._count) * FRAME_STRIDE
        self._messages.vector_lengths[:] = MAX_FRAME_BYTES

    def receive(self, fd: int) -> tuple[int, int]:
        """Return how many frames came, and an error number or 0."""
        while True:
            count = _RECVMMSG(fd, self._messages.address, self._count, socket.MSG_DONTWAIT, None)
            if count >= 0:
                self._buffer.lengths[:count] = self._messages.lengths[:count]
                return count, 0
            code = ctypes.get_errno()
            if code != errno.EINTR:
                return 0, code


class SendBatch:
    """Sends up to `count` rows of any buffer by one call."""

    def __init__(self, count: int) -> None:
        self._messages = _Messages(count)

    def send(self, fd: int, buffer: FrameBuffer, rows: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Return how many frames the kernel took, and an error number or 0."""
        count = len(rows)
        messages = self._messages
        messages.bases[:count] = buffer.address + rows * FRAME_STRIDE
        messages.vector_lengths[:count] = buffer.lengths[rows]
        while True:
            sent = _SENDMMSG(fd, messages.address, count, _SEND_FLAGS)
            if sent >= 0:
                return sent, 0
            code = ctypes.get_errno()
            if code != errno.EINTR:
                return 0, code
