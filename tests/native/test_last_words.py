# SPDX-License-Identifier: Apache-2.0
"""All that a peer sent before it left is received, whatever is sent to it meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import pytest
from link_ends import DEADLINE_S, NO_LINKS, link, receive_all
from p4reduce_native.datagrams import DatagramLink, pack
from p4reduce_native.link import UNIX_KINDS, Link, LinkKind
from p4reduce_native.udp_handshake import HandshakeResult

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

TOKEN = b"\x01token\xff\x00"
FRAMES = [bytes([number]) * (60 + number) for number in range(150)]
SEVERAL = 64  # frames of one call


def send_in_vain(end: Link | DatagramLink) -> None:
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        end.send([b"x" * 60])


def to_the_end(end: Link | DatagramLink) -> None:
    """Send and receive until that fails."""
    while True:
        send_in_vain(end)
        assert end.receive() == []
        if isinstance(end, Link) and end.kind != LinkKind.DATAGRAM:
            assert not end.wait(-1, DEADLINE_S, writable=False)


@pytest.mark.parametrize("kind", UNIX_KINDS)
@pytest.mark.parametrize("leaver", [0, 1], ids=["switch", "worker"])
@pytest.mark.parametrize("unread", [0, 1, 3])
@pytest.mark.parametrize("tries", [0, 1, 4])
def test_of_a_unix_socket(kind: LinkKind, leaver: int, unread: int, tries: int) -> None:
    """A peer that leaves frames unread resets its socket, which is no reason to drop its own."""
    with link(kind, 256) as ends:
        leaving, staying = ends[leaver], ends[1 - leaver]
        for _ in range(unread):
            staying.send([b"unread" * 10])
        for start in range(0, len(FRAMES), SEVERAL):
            some = FRAMES[start : start + SEVERAL]
            assert leaving.send(some) == len(some)
        leaving.close()
        for _ in range(tries):
            send_in_vain(staying)
        assert receive_all(staying, len(FRAMES)) == FRAMES
        for _ in range(tries):
            send_in_vain(staying)
        with pytest.raises(BrokenPipeError):
            to_the_end(staying)


@pytest.mark.parametrize("kind", UNIX_KINDS)
def test_a_peer_that_only_stops_listening_is_heard_out(kind: LinkKind) -> None:
    """And is then cut off, without any event from its socket."""
    with link(kind, 256) as (switch, worker):
        with socket.socket(fileno=os.dup(worker.fileno())) as its:
            its.shutdown(socket.SHUT_RD)
        assert worker.send(FRAMES[:SEVERAL]) == SEVERAL
        for _ in range(2):
            send_in_vain(switch)
        assert receive_all(switch, SEVERAL) == FRAMES[:SEVERAL]
        with pytest.raises(BrokenPipeError):
            to_the_end(switch)


@pytest.mark.parametrize("make", [Link.over_datagrams, DatagramLink], ids=["C", "Python"])
def test_of_a_host_that_refuses(make: type[DatagramLink]) -> None:
    """That nobody listens there counts, however often it is said, only behind what has come."""
    ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for end in ends:
        end.bind(("127.0.0.1", 0))
    for end, other in (ends, ends[::-1]):
        end.connect(other.getsockname())
    staying = make(ends[0], HandshakeResult(TOKEN, 1472, b"", b""))
    said = 0
    for datagram, count in pack(TOKEN, FRAMES, 1472):
        ends[1].send(datagram)
        said += count
    assert said == len(FRAMES)
    ends[1].close()

    def send() -> int | None:
        try:
            staying.send([b"x" * 60])
        except OSError as error:
            return error.errno
        return None

    codes = [send() for _ in range(20)]
    assert set(codes) <= {None, errno.EPIPE}
    heard: list[bytes] = []
    while len(heard) < len(FRAMES):
        heard += staying.receive()
    assert heard == FRAMES
    with pytest.raises(BrokenPipeError):
        to_the_end(staying)
    staying.close()
