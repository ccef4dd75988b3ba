# SPDX-License-Identifier: Apache-2.0
"""A link over UDP in Python: the reference of `csrc/link/datagram.c`, and its replacement without
C.

It stores no headers of frames (headers.h), so the peer in C sends it whole frames and whole lanes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

from p4reduce_native.frame_lanes import FRAME_LANES
from p4reduce_native.udp_handshake import HandshakeResult

HEAD_BYTES = 12
_STORED_BYTES = 78 - (4 + 20)
FRAMING_BYTES = 14 + 20 + 8 + HEAD_BYTES + 2 - _STORED_BYTES
"""What a link adds to a frame: headers of Ethernet, IPv4 and UDP, the head and the record's length,
less what the peer has stored of the frame's header, of which five words differ (headers.h)."""
FLOAT32_SPARED_BYTES = 4 * FRAME_LANES // 8
"""Of a frame's lanes, where they stand for float32 (float_lanes.h)."""
_FRAMES, _PING, _PONG, _BYE = range(4)
_HEAD = struct.Struct("<8sB3x")
_LENGTH = struct.Struct("<H")
_AT_ONCE = 64
_IP_MTU = 14  # <linux/in.h>
_IP_AND_UDP = 28
_REFUSALS = 3  # how often the other host must say that nobody listens there
# No event reports when the host has memory or a way to the peer again (datagram.c: has_no_way).
_LATER = frozenset(
    {
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.EADDRNOTAVAIL,
        errno.EINVAL,
        errno.EPERM,
        errno.EACCES,
    }
)
_PAUSES = (0.001, 0.064)  # seconds before the next try: at first, and at most


def frames_per_datagram(size: int) -> int:
    """Return how many frames a datagram of up to `size` bytes can hold."""
    return min(max(size // 256, 1), 64)


def pack(token: bytes, frames: Sequence[bytes], size: int) -> Iterator[tuple[bytes, int]]:
    """Pack frames into datagrams of up to `size` bytes; yields each with its number of frames."""
    most = frames_per_datagram(size)
    datagram, count = bytearray(), 0
    for frame in frames:
        gap = -len(datagram) % 4
        if count == most or (count and len(datagram) + gap + _LENGTH.size + len(frame) > size):
            yield bytes(datagram), count
            count = 0
        if count == 0:
            datagram, gap = bytearray(_HEAD.pack(token, _FRAMES)), 0
        datagram += bytes(gap) + _LENGTH.pack(len(frame)) + frame
        count += 1
    if count:
        yield bytes(datagram), count


def unpack(records: bytes, most: int) -> list[bytes]:
    """Return up to `most` frames after a datagram's head.

    A record that does not fit is an empty frame, and the last one.
    """
    frames: list[bytes] = []
    at = 0
    while at < len(records) and len(frames) < most:
        body = at + _LENGTH.size
        length = _LENGTH.unpack_from(records, at)[0] if body <= len(records) else 1 << 16
        if length > len(records) - body:
            frames.append(b"")
            break
        frames.append(records[body : body + length])
        at = body + length + (-(body + length) % 4)
    return frames


class DatagramLink:
    """One end of a connected UDP socket, which it owns.

    Attributes:
        strangers: datagrams that came from the peer's address without its token.
    """

    def __init__(self, sock: socket.socket, entered: HandshakeResult) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._entered = entered
        self._bytes = entered.size  # of a datagram that is sent, at most
        self._most = frames_per_datagram(entered.size)
        self._unheard = self._refused = 0
        self._has_left = False
        self._broken = 0
        self._pause = self._retry_at = 0.0
        self.strangers = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[bytes]:
        """Receive frames of any length without waiting.

        Raises:
            OSError: EPIPE, the peer has gone; or another. The link is then broken.
        """
        self._check()
        if self._has_left:
            raise self._break(errno.EPIPE)
        frames: list[bytes] = []
        for _ in range(_AT_ONCE // self._most):
            try:
                datagram = self._socket.recv(self._entered.size + 1)
            except BlockingIOError:
                if self._refused >= _REFUSALS and not frames:
                    raise self._break(errno.EPIPE) from None
                break
            except OSError as error:
                self._receive_failed(error)
                continue  # an error is reported before what has come
            frames += self._take_in(datagram)
        if self._has_left and not frames:
            raise self._break(errno.EPIPE)
        return frames

    def send(self, frames: Sequence[bytes]) -> int:
        """Send as many of the first frames as there is room for; return their number.

        Raises:
            OSError: as for `receive`; EAGAIN if there is no room for the first one. After EPIPE
                `receive` decides whether the link is broken.
        """
        self._check()
        done = 0
        if self.pause:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        while done < len(frames):
            left = frames[done : done + _AT_ONCE]
            datagram, count = next(pack(self._entered.token, left, self._bytes))
            try:
                self._socket.send(datagram)
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                self._refused += 1
                if self._refused >= _REFUSALS:
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
                continue  # this error belongs to an earlier datagram
            except OSError as error:
                if error.errno in _LATER:
                    self._pause = min(max(2 * self._pause, _PAUSES[0]), _PAUSES[1])
                    self._retry_at = time.monotonic() + self._pause
                    break
                if error.errno != errno.EMSGSIZE:
                    raise self._break(error.errno or errno.EIO) from None
                if count > 1:
                    self._narrow()
                    continue
            else:
                self._pause = 0.0
            done += count
        if frames and not done:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return done

    def events(self, *, frames_wait: bool) -> int:
        """Return the poll events to wait for if frames wait that `send` did not accept."""
        at_once = (frames_wait and not self.pause) or self._refused >= _REFUSALS
        return select.POLLIN | (select.POLLOUT if at_once else 0)

    @property
    def pause(self) -> float:
        """Seconds until `send` tries again, which no event reports; 0: it may try now."""
        return max(self._retry_at - time.monotonic(), 0.0)

    def keepalive(self) -> int:
        """Return how often this was called since the peer was last heard.

        Call it at regular times. From the second call on it asks the peer for an answer.
        """
        if self._unheard:
            self._send_bare(_PING)
        self._unheard += 1
        return self._unheard - 1

    def close(self) -> None:
        """Say goodbye, and release everything. Idempotent."""
        if self._socket.fileno() >= 0:
            if not self._broken:
                self._send_bare(_BYE)
            self._socket.close()

    def _take_in(self, datagram: bytes) -> list[bytes]:
        if len(datagram) < HEAD_BYTES or datagram[:8] != self._entered.token:
            if datagram and datagram == self._entered.greeting:
                self._send(self._entered.answer)
            else:
                self.strangers += 1
            return []
        self._unheard = self._refused = 0
        kind = datagram[8]
        if kind == _PING:
            self._send_bare(_PONG)
        elif kind == _BYE:
            self._has_left = True
        elif kind == _FRAMES:
            return unpack(datagram[HEAD_BYTES:], self._most)
        return []

    def _send_bare(self, kind: int) -> None:
        self._send(_HEAD.pack(self._entered.token, kind))

    def _send(self, datagram: bytes) -> None:
        with contextlib.suppress(OSError):  # a later one does the same
            self._socket.send(datagram)

    def _receive_failed(self, error: OSError) -> None:
        """Raise what ends the link. ICMP "port unreachable" can be forged. So it counts only when
        it comes again and again, and nothing comes from the peer meanwhile.
        """
        if error.errno == errno.ECONNREFUSED:
            self._refused += 1
        elif error.errno not in _LATER | {errno.EMSGSIZE, errno.EINTR}:
            raise self._break(error.errno or errno.EIO)

    def _narrow(self) -> None:
        """The path has become narrower than it was; the kernel may know how narrow."""
        narrower = self._bytes // 2
        if self._socket.family == socket.AF_INET and sys.platform == "linux":
            known = self._socket.getsockopt(socket.IPPROTO_IP, _IP_MTU) - _IP_AND_UDP
            if HEAD_BYTES < known < self._bytes:
                narrower = known
        self._bytes = narrower

    def _break(self, code: int) -> OSError:
        self._broken = code
        return OSError(code, os.strerror(code))

    def _check(self) -> None:
        if self._broken:
            raise self._break(self._broken)
