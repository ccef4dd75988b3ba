# SPDX-License-Identifier: Apache-2.0
"""Frames in and out of a socket in batches: recvmmsg and sendmmsg.

Besides saving system calls, this keeps the interpreter lock: `ctypes.PyDLL` does not release it,
and on a non-blocking socket these calls never wait. A plain `recv` releases it each time, and
whenever another thread computes (the P4Runtime server encoding a table, say) the data plane would
have to win it back per frame, waiting a whole switch interval each time.

The buffers belong to one thread. One `FrameBatches` serves all ports of a data plane.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from p4reduce_switch.ports.port import MAX_FRAME_BYTES, MIN_FRAME_BYTES, PortStats

__all__ = ["BATCH", "FrameBatches"]

BATCH = 64  # frames a call

# One byte more than a frame may have shows that it was longer; the rest keeps rows apart by whole
# cache lines, and leaves room to put a VLAN tag back in.
_ROW_BYTES = MAX_FRAME_BYTES + 64
_VLAN_TAG_BYTES = 4
_MAC_PAIR_BYTES = 12

_TP_STATUS_VLAN_VALID = 1 << 4
_TP_STATUS_VLAN_TPID_VALID = 1 << 6
_ETHERTYPE_VLAN = 0x8100


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class _MsgHdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _MMsgHdr(ctypes.Structure):
    _fields_ = (("hdr", _MsgHdr), ("len", ctypes.c_uint32))


class _AuxData(ctypes.Structure):
    """A control message with `struct tpacket_auxdata` (linux/if_packet.h)."""

    _fields_ = (
        ("cmsg_len", ctypes.c_size_t),
        ("cmsg_level", ctypes.c_int),
        ("cmsg_type", ctypes.c_int),
        ("status", ctypes.c_uint32),
        ("len", ctypes.c_uint32),
        ("snaplen", ctypes.c_uint32),
        ("mac", ctypes.c_uint16),
        ("net", ctypes.c_uint16),
        ("vlan_tci", ctypes.c_uint16),
        ("vlan_tpid", ctypes.c_uint16),
    )


class _Calls:
    """The system calls, looked up where they are needed: not every system has all of them."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        number, pointer, count = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint
        self.recvmmsg = libc.recvmmsg
        self.recvmmsg.argtypes = (number, pointer, count, number, pointer)
        self.send = libc.send
        self.send.argtypes = (number, ctypes.c_char_p, ctypes.c_size_t, number)
        self.sendmmsg = libc.sendmmsg
        self.sendmmsg.argtypes = (number, pointer, count, number)
        self.send_flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


@functools.cache
def _calls() -> _Calls:
    return _Calls()


class _Batch:
    """`BATCH` messages of one row each, and strided views of what changes from call to call."""

    def __init__(self, *, row_limit: int, auxdata: bool) -> None:
        self._buffer = bytearray(BATCH * _ROW_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._iovs = (_IoVec * BATCH)()
        self._headers = (_MMsgHdr * BATCH)()
        self.auxdata = (_AuxData * BATCH)()
        for i in range(BATCH):
            self._iovs[i].base = base + i * _ROW_BYTES
            self._iovs[i].len = row_limit
            header = self._headers[i].hdr
            header.iov = ctypes.addressof(self._iovs[i])
            header.iovlen = 1
            if auxdata:
                header.control = ctypes.addressof(self.auxdata[i])
        self.rows = memoryview(self._buffer)
        self.offsets = range(0, BATCH * _ROW_BYTES, _ROW_BYTES)
        self.address = ctypes.addressof(self._headers)
        self.lengths = _column(self._headers, _MMsgHdr, "I", _MMsgHdr.len.offset)
        self.control_lengths = _column(
            self._headers, _MMsgHdr, "N", _MMsgHdr.hdr.offset + _MsgHdr.controllen.offset
        )
        self.iov_lengths = _column(self._iovs, _IoVec, "N", _IoVec.len.offset)
        self.statuses = _column(self.auxdata, _AuxData, "I", _AuxData.status.offset)


def _column(records: Any, record: type[ctypes.Structure], code: str, offset: int) -> Any:
    """One field of all records, as a view of the native type `code` ("I" or size_t's "N")."""
    size = struct.calcsize(code)
    words: Any = memoryview(records).cast("B")
    return words.cast(code)[offset // size :: ctypes.sizeof(record) // size]


def _sizes(values: Sequence[int]) -> Any:
    """`values` as size_t, to be copied into a column."""
    packed: Any = memoryview(struct.pack(f"{len(values)}N", *values))
    return packed.cast("N")


class FrameBatches:
    """Reads and writes batches of frames on non-blocking sockets."""

    def __init__(self) -> None:
        self._in = _Batch(row_limit=MAX_FRAME_BYTES + 1, auxdata=False)
        self._in_packet = _Batch(row_limit=MAX_FRAME_BYTES + 1, auxdata=True)
        self._control_room = _sizes([ctypes.sizeof(_AuxData)] * BATCH)
        self._out = _Batch(row_limit=0, auxdata=False)

    def receive(
        self, fd: int, stats: PortStats, *, gone: Callable[[], bool]
    ) -> tuple[list[bytes], bool]:
        """Frames of a connected socket, and whether a message was empty (as at the end).

        Where the peer has `gone`, empty messages behind all others are the end, not frames. That is
        asked when they have been read: it may have gone a moment before.

        Raises:
            OSError: what the socket reports, but for "nothing there".
        """
        frames, lengths = _receive(self._in, fd)
        empty = 0 in lengths
        if empty and gone():
            while lengths and lengths[-1] == 0:
                frames.pop()
                lengths.pop()
        return _count(frames, lengths, stats), empty

    def receive_packets(self, fd: int, stats: PortStats) -> list[bytes]:
        """Frames of a packet socket, with the VLAN tag that the kernel took out put back in.

        The socket must have PACKET_AUXDATA set.

        Raises:
            OSError: what the socket reports, but for "nothing there".
        """
        batch = self._in_packet
        batch.control_lengths[:] = self._control_room
        frames, lengths = _receive(batch, fd)
        for i, status in enumerate(batch.statuses[: len(frames)].tolist()):
            if status & _TP_STATUS_VLAN_VALID:
                frames[i] = _with_vlan_tag(frames[i], batch.auxdata[i])
                lengths[i] += _VLAN_TAG_BYTES
        return _count(frames, lengths, stats)

    def send(self, fd: int, frames: Sequence[bytes]) -> int:
        """Send up to `BATCH` frames; return how many were sent, the first ones.

        Raises:
            OSError: what became of the first frame, if that was not sent; EAGAIN if the queue is
                full.
        """
        calls = _calls()
        if len(frames) == 1:  # common at low load, where latency counts; half the cost
            _checked(calls.send(fd, frames[0], len(frames[0]), calls.send_flags))
            return 1
        batch = self._out
        batch.iov_lengths[: len(frames)] = _sizes([len(frame) for frame in frames])
        rows = batch.rows
        for start, frame in zip(batch.offsets, frames, strict=False):
            rows[start : start + len(frame)] = frame
        return _checked(calls.sendmmsg(fd, batch.address, len(frames), calls.send_flags))


def _receive(batch: _Batch, fd: int) -> tuple[list[bytes], list[int]]:
    try:
        n = _checked(_calls().recvmmsg(fd, batch.address, BATCH, socket.MSG_DONTWAIT, None))
    except (BlockingIOError, InterruptedError):
        return [], []
    lengths: list[int] = batch.lengths[:n].tolist()
    rows = batch.rows
    frames = [
        rows[start : start + length].tobytes()
        for start, length in zip(batch.offsets, lengths, strict=False)
    ]
    return frames, lengths


def _count(frames: list[bytes], lengths: list[int], stats: PortStats) -> list[bytes]:
    """The frames of allowed length; all are counted."""
    if lengths and (min(lengths) < MIN_FRAME_BYTES or max(lengths) > MAX_FRAME_BYTES):
        too_long = sum(length > MAX_FRAME_BYTES for length in lengths)
        frames = [f for f in frames if MIN_FRAME_BYTES <= len(f) <= MAX_FRAME_BYTES]
        stats.rx_too_long += too_long
        stats.rx_too_short += len(lengths) - len(frames) - too_long
        lengths = [len(f) for f in frames]
    stats.rx_frames += len(frames)
    stats.rx_bytes += sum(lengths)
    return frames


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _with_vlan_tag(frame: bytes, aux: _AuxData) -> bytes:
    tpid: int = aux.vlan_tpid if aux.status & _TP_STATUS_VLAN_TPID_VALID else _ETHERTYPE_VLAN
    tci: int = aux.vlan_tci
    tag = (tpid << 16 | tci).to_bytes(_VLAN_TAG_BYTES, "big")
    return frame[:_MAC_PAIR_BYTES] + tag + frame[_MAC_PAIR_BYTES:]
