# SPDX-License-Identifier: Apache-2.0
"""Links between the switch's Unix ports and their peers; `csrc/link/link.h` says how they work.

Calls that never wait keep the interpreter's lock, because getting it back can take long while other
threads compute.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import functools
import math
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from p4reduce_native.c_header import CHeader, Functions
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import keeping_lock, runtime
from p4reduce_native.udp_handshake import HandshakeResult

_HEADER = CHeader("link/link.h")
_LinkCounts = _HEADER.structure("p4r_link_counts")
_DatagramCounts = _HEADER.structure("p4r_datagram_counts")
_Frame = _HEADER.structure("p4r_frame")
_KINDS = _HEADER.enumerations["p4r_link_kind"]

MESSAGE_FRAMES = _HEADER.constants["P4R_LINK_FRAMES"]
"""The most frames of one message; whoever receives has room for so many at least."""

MAX_FRAMES = _HEADER.constants["P4R_LINK_MOST"]
"""The most frames of one call."""

_CONTROL_MESSAGE_BYTES = _HEADER.constants["P4R_CONTROL_MESSAGE_BYTES"]
_ROW_BYTES = _HEADER.constants["P4R_ROW_BYTES"]
_MAX_WAIT_MS = 2**31 - 1
_WOKEN = _HEADER.constants["P4R_LINK_WOKEN"]
_FOR_ROOM = _HEADER.constants["P4R_LINK_FOR_ROOM"]


class LinkKind(enum.IntEnum):
    """The kinds of links, from slow to fast."""

    SINGLE = _KINDS["P4R_LINK_SINGLE"]
    """One frame per message, as of peers that know no other."""
    SHARED = _KINDS["P4R_LINK_SHARED"]
    """Rings in shared memory; the socket carries doorbells."""
    OFFLOAD = _KINDS["P4R_LINK_OFFLOAD"]
    """Not of a Unix socket: many frames per packet of a veth pair."""
    DATAGRAM = _KINDS["P4R_LINK_DATAGRAM"]
    """A connected UDP socket."""
    PACKET = _KINDS["P4R_LINK_PACKET"]
    """A packet socket of the switch, one frame per packet."""


UNIX_KINDS = (LinkKind.SINGLE, LinkKind.SHARED)
"""Those that the ends of a Unix socket can agree on."""


def offers(best: LinkKind) -> int:
    """Return the bits of all kinds up to `best` that both ends must agree on."""
    return sum(1 << kind for kind in UNIX_KINDS if LinkKind.SINGLE < kind <= best)


@functools.cache
def _waiting() -> Functions:
    """The library, for calls that wait."""
    return _HEADER.functions(runtime())


@functools.cache
def _quick() -> Functions:
    """The library, for all other calls."""
    return _HEADER.functions(keeping_lock(runtime()))


def why_not() -> str | None:
    """Return why links are not available; None if they are. The first call may have to compile."""
    try:
        runtime()
    except NativeUnavailableError as error:
        return str(error)
    return None


def _each(field: str) -> slice:
    """The places of a field in an array of frames, in steps of its own size."""
    at = getattr(_Frame, field)
    return slice(at.offset // at.size, None, ctypes.sizeof(_Frame) // at.size)


class Link:
    """One end of a link, for one thread. The class methods make it.

    `over_packets` and `over_interface` use a duplicate of the socket, which stays the caller's. The
    others take the socket over if they succeed. If they fail, it is the caller's as before.

    Attributes:
        counts: `struct p4r_link_counts` of this link, kept up to date by it. Not to be read after
            `close`.
        address: where it is. Known after `close` too, when nothing may use it any more.
    """

    counts: Any

    def __init__(self, pointer: int) -> None:
        self._library = _quick()
        self._pointer = self.address = pointer
        self.counts = _LinkCounts.from_address(self._library.p4r_link_counts(pointer))
        frames = (_Frame * MESSAGE_FRAMES)()
        self._frames = ctypes.addressof(frames)
        raw: Any = memoryview(frames).cast("B")
        self._starts = raw.cast("Q")[_each("bytes")]
        self._lengths = raw.cast("I")[_each("length")]

    @classmethod
    def _over(cls, sock: socket.socket, make: Callable[..., int | None], *arguments: Any) -> Link:
        error = ctypes.c_int()
        pointer = make(sock.fileno(), *arguments, ctypes.byref(error))
        if not pointer:
            raise OSError(error.value, os.strerror(error.value))
        sock.detach()
        return cls(pointer)

    @classmethod
    def accept(cls, sock: socket.socket, offered: int, slots: int = 0) -> Link:
        """Make the switch's end of a connected socket.

        Args:
            sock: SOCK_SEQPACKET.
            offered: the kinds to accept, see `offers`.
            slots: frames in a ring of shared memory, a power of two up to 4,096; 0: 256.

        Raises:
            NativeUnavailableError: machine code is not available.
            ValueError: `slots` is wrong.
            OSError: ENOMEM.
        """
        if not 0 <= slots <= 4096 or slots & (slots - 1):
            raise ValueError(f"{slots} slots: a power of two up to 4,096 is needed")
        return cls._over(sock, _quick().p4r_link_accept, offered, slots)

    @classmethod
    def connect(cls, sock: socket.socket, wishes: int, timeout: float) -> Link:
        """Make the worker's end of a connected socket.

        Args:
            sock: SOCK_SEQPACKET.
            wishes: the kinds to ask for, see `offers`; 0: the switch is not asked.
            timeout: seconds for the switch's answer.

        Raises:
            NativeUnavailableError: machine code is not available.
            OSError: with the reason as its number: ETIMEDOUT, an older switch, or a busy one;
                EPROTO, the answer cannot be used; EPIPE, the switch hung up; or another.
        """
        return cls._over(sock, _waiting().p4r_link_connect, wishes, int(timeout * 1000))

    @classmethod
    def over_packets(cls, sock: socket.socket) -> Link:
        """Make a link from a duplicate of a bound packet socket.

        One frame per message, as of kind `SINGLE`.

        Args:
            sock: AF_PACKET, SOCK_RAW.

        Raises:
            NativeUnavailableError: there is no machine code.
            OSError: ENOMEM, or there is no further descriptor.
        """
        with sock.dup() as own:
            return cls._over(own, _quick().p4r_link_accept, 0, 0)

    @classmethod
    def over_interface(cls, sock: socket.socket, *, peer_understands: bool) -> Link:
        """Make a link from a duplicate of a packet socket on one end of a veth pair.

        Args:
            sock: AF_PACKET, SOCK_RAW.
            peer_understands: whether the other end accepts packets with many frames. Otherwise
                it gets them only after it has sent one.

        Raises:
            NativeUnavailableError: there is no machine code.
            OSError: the kernel lacks PACKET_VNET_HDR, or ENOMEM, or there is no further descriptor.
        """
        with sock.dup() as own:
            return cls._over(own, _quick().p4r_link_over_interface, peer_understands)

    @classmethod
    def over_datagrams(
        cls, sock: socket.socket, entered: HandshakeResult, probe_timeout: float = 0.3
    ) -> Link:
        """Make one end of a connected UDP socket.

        Args:
            sock: of the worker, or of the switch for this worker.
            entered: the result of the handshake.
            probe_timeout: seconds to wait for the answer to each of three probes of the path.

        Raises:
            NativeUnavailableError: there is no machine code.
            OSError: ENOMEM, or EINVAL: the result has no possible size.
        """
        return cls._over(
            sock,
            _quick().p4r_link_over_datagrams,
            entered.token,
            entered.size,
            entered.greeting,
            len(entered.greeting),
            entered.answer,
            len(entered.answer),
            max(round(probe_timeout * 1000), 1),
        )

    @property
    def pointer(self) -> int:
        """The `struct p4r_link *`, for other C code. Raises ValueError after `close`."""
        if not self._pointer:
            raise ValueError("this link is closed")
        return self._pointer

    def keepalive(self) -> int:
        """Return how often this was called since the peer was last heard; see link.h."""
        return int(self._library.p4r_link_keepalive(self.pointer))

    @property
    def strangers(self) -> int:
        """The number of datagrams from the peer's address without its token."""
        return int(self.datagram_counts.strangers)

    @property
    def datagram_counts(self) -> Any:
        """The present `struct p4r_datagram_counts` of a link over UDP; zeros for other kinds."""
        return _DatagramCounts.from_address(self._library.p4r_link_datagram_counts(self.pointer))

    def control_message(self) -> bytes:
        """Return the last handshake message from the peer's address; empty if none."""
        room = ctypes.create_string_buffer(_CONTROL_MESSAGE_BYTES)
        length = self._library.p4r_link_control_message(self.pointer, room)
        # Only the first bytes of it are kept; what else it had reads as zeros.
        return bytes(room.raw[: min(length, _CONTROL_MESSAGE_BYTES)]).ljust(length, b"\0")

    def close(self) -> None:
        """Release everything. Idempotent."""
        if self._pointer:
            self._library.p4r_link_free(self.hand_over())

    def hand_over(self) -> int:
        """Return the `struct p4r_link *` to its new owner. This object is as after `close`."""
        pointer, self._pointer = self.pointer, 0
        del self.counts
        return pointer

    @property
    def kind(self) -> LinkKind:
        return LinkKind(self._library.p4r_link_kind(self.pointer))

    def fileno(self) -> int:
        return int(self._library.p4r_link_fd(self.pointer))

    def events(self, *, frames_wait: bool) -> int:
        """Return the epoll events to wait for if frames wait that `send` did not accept."""
        return int(self._library.p4r_link_events(self.pointer, frames_wait))

    def receive(self) -> list[bytes]:
        """Receive without waiting. Frames of bad length are counted and left out.

        Raises:
            OSError: EPIPE, the peer has gone; EPROTO, it broke the rules; or another.
        """
        count = self._library.p4r_link_receive(self.pointer, self._frames, MESSAGE_FRAMES)
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        starts, lengths = self._starts[:count].tolist(), self._lengths[:count].tolist()
        return list(map(ctypes.string_at, starts, lengths))

    def send(self, frames: Sequence[bytes]) -> int:
        """Send as many of the first frames as there is room for; return their number.

        Raises:
            OSError: as for `receive`; EAGAIN if there is no room for the first one.
        """
        count = len(frames)
        rows = b"".join(frame.ljust(_ROW_BYTES)[:_ROW_BYTES] for frame in frames)
        memory = ctypes.create_string_buffer(rows, len(rows))
        lengths = (ctypes.c_int64 * count)(*map(len, frames))
        numbers = (ctypes.c_int64 * count)(*range(count))
        sent = self.send_rows(
            ctypes.addressof(memory),
            _ROW_BYTES,
            lengths=ctypes.addressof(lengths),
            rows=ctypes.addressof(numbers),
            count=count,
        )
        if sent > 0 or not count:
            return sent
        code = -sent if sent else errno.EAGAIN
        raise OSError(code, os.strerror(code))

    def receive_rows(self, rows: int, stride: int, room: int, lengths: int, most: int) -> int:
        """Receive frames into rows; see link.h. Addresses are numbers.

        Returns the number of frames, or minus an errno.
        """
        count: int = self._library.p4r_link_receive_rows(
            self.pointer, rows, stride, room, lengths, most
        )
        return count

    def send_rows(self, base: int, stride: int, lengths: int, rows: int, count: int) -> int:
        """Send rows; see link.h. Addresses are numbers.

        Returns how many frames were accepted, or minus an errno.
        """
        sent: int = self._library.p4r_link_send_rows(
            self.pointer, base, stride, lengths, rows, count
        )
        return sent

    def wait(self, wake_fd: int, timeout: float, *, writable: bool) -> bool:
        """Wait as link.h says, without the interpreter's lock; return whether `wake_fd` is
        readable.

        Raises:
            OSError: the error of poll.
        """
        milliseconds = min(math.ceil(max(timeout, 0.0) * 1000), _MAX_WAIT_MS)
        how = _FOR_ROOM if writable else 0
        result: int = _waiting().p4r_link_wait(self.pointer, wake_fd, milliseconds, how)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return bool(result & _WOKEN)
