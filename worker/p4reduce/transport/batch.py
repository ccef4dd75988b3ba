# SPDX-License-Identifier: Apache-2.0
"""recvmmsg and sendmmsg (see their man pages) on rows of a `FrameBuffer`.

The records that the kernel reads are numpy arrays, so that a batch of any size is prepared by a
handful of assignments. `ctypes.PyDLL` keeps the interpreter's lock: the calls never wait, and to
give the lock away would mean to win it back from whatever else computes in this process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
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


class _Calls:
    """The system calls. Linux has them, and the BSDs; they are looked up where they are needed."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        number, pointer, count = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint
        self.send = libc.sendmmsg
        self.send.argtypes = (number, pointer, count, number)
        self.receive = libc.recvmmsg
        self.receive.argtypes = (number, pointer, count, number, pointer)
        self.send_flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


@functools.cache
def _calls() -> _Calls:
    return _Calls()


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
        self._call = _calls().receive
        self._count = len(buffer)
        self._messages = _Messages(self._count)
        self._messages.bases[:] = buffer.address + np.arange(self._count) * FRAME_STRIDE
        self._messages.vector_lengths[:] = MAX_FRAME_BYTES

    def receive(self, fd: int) -> tuple[int, int]:
        """Return how many frames came, and an error number or 0."""
        while True:
            count = self._call(fd, self._messages.address, self._count, socket.MSG_DONTWAIT, None)
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
        self._call, self._flags = _calls().send, _calls().send_flags

    def send(self, fd: int, buffer: FrameBuffer, rows: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Return how many frames the kernel took, and an error number or 0."""
        count = len(rows)
        messages = self._messages
        messages.bases[:count] = buffer.address + rows * FRAME_STRIDE
        messages.vector_lengths[:count] = buffer.lengths[rows]
        while True:
            sent = self._call(fd, messages.address, count, self._flags)
            if sent >= 0:
                return sent, 0
            code = ctypes.get_errno()
            if code != errno.EINTR:
                return 0, code
