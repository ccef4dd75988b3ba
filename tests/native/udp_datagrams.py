# SPDX-License-Identifier: Apache-2.0
"""Datagrams of a link over UDP in plain Python, and a bare socket for them."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator, Sequence

from p4reduce_native.link import Link
from p4reduce_native.udp_handshake import HandshakeResult, never_cut_up

SECONDS = 120.0
TOKEN = b"\x01token\xff\x00"
FRAMES, CONTEXT, CONFIRMED = 0, 4, 5
COMPRESSED, SHORTENED = 0x8000, 0x4000  # in a record's length
TAKES_SHORTENED = b"\1"  # in a confirmation


def joined(size: int) -> tuple[Link, socket.socket]:
    """A link, and the bare socket at its other end."""
    one, bare = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for end in (one, bare):
        end.bind(("127.0.0.1", 0))
        never_cut_up(end)
    one.connect(bare.getsockname())
    bare.connect(one.getsockname())
    bare.settimeout(SECONDS)
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return Link.over_datagrams(one, HandshakeResult(TOKEN, size, b"", b"")), bare


@contextlib.contextmanager
def ends_of(size: int = 1472) -> Iterator[tuple[Link, socket.socket]]:
    """The same, closed at the end."""
    link, bare = joined(size)
    yield link, bare
    link.close()
    bare.close()


def datagram(kind: int, body: bytes = b"") -> bytes:
    return TOKEN + bytes([kind, 0, 0, 0]) + body


def confirmation(context: int, can: bytes = TAKES_SHORTENED) -> bytes:
    """What an end says that has stored a context: what it can do as well."""
    return datagram(CONFIRMED, context.to_bytes(2, "little") + can.ljust(2, b"\0"))


def number_of(context: int) -> bytes:
    return context.to_bytes(2, "little") + bytes(2)


def compressed(context: int, before: bytes, now: bytes, words: Sequence[int]) -> bytes:
    """The plain specification: a record with these words of `now`, whose context is `before`."""
    first, header = (
        struct.pack("<I", context << 20 | sum(1 << word for word in words)),
        b"\0\0" + now,
    )
    for word in range(20):
        assert word in words or header[4 * word :][:4] == (b"\0\0" + before)[4 * word :][:4]
    body = first + b"".join(header[4 * word :][:4] for word in words) + now[78:]
    return (len(body) | COMPRESSED).to_bytes(2, "little") + body


def heard(link: Link) -> list[bytes]:
    """What is there; over loopback a datagram is there once it has been sent."""
    frames: list[bytes] = []
    while more := link.receive():
        frames += more
    return frames


def waiting(bare: socket.socket) -> list[bytes]:
    """The datagrams that have come, from the first to the last."""
    poll, found = select.poll(), []
    poll.register(bare, select.POLLIN)
    while poll.poll(0):
        found.append(bare.recv(65536))
    return found
