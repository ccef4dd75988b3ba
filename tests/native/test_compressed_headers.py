# SPDX-License-Identifier: Apache-2.0
"""Over UDP frames leave without the part of their headers that the peer has stored (headers.h).

At one end a link, at the other a bare socket that says and hears what the test wants; or a relay
between two links, which loses, doubles and overtakes.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from link_ends import NO_LINKS
from p4reduce_native.datagrams import unpack
from p4reduce_native.link import Link
from udp_datagrams import (
    COMPRESSED,
    CONFIRMED,
    CONTEXT,
    FRAMES,
    compressed,
    confirmation,
    datagram,
    ends_of,
    heard,
    joined,
    number_of,
    waiting,
)

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

HEADER = bytes(range(1, 79))
LANES = bytes(range(256)) * 4


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Link, socket.socket]]:
    with ends_of(getattr(request, "param", 1472)) as ends:
        yield ends


def frame(block: int) -> bytes:
    """A frame whose words 13 and 15 are its own: a slot, and a block."""
    words = bytearray(bytes(2) + HEADER)
    words[52:56] = (block % 7).to_bytes(4, "big")
    words[60:64] = block.to_bytes(4, "big")
    return bytes(words[2:]) + LANES


def whole(frame: bytes) -> bytes:
    return datagram(FRAMES, len(frame).to_bytes(2, "little") + frame)


# -- Out -------------------------------------------------------------------------------------------


def test_a_header_leaves_once(ends: tuple[Link, socket.socket]) -> None:
    """Two frames of a kind make a context. After it is confirmed, what differs leaves alone."""
    link, bare = ends
    for block in (1, 2):
        assert link.send([frame(block)]) == 1
        assert bare.recv(65536) == whole(frame(block))
    assert link.send([frame(3)]) == 1
    assert bare.recv(65536) == datagram(CONTEXT, number_of(1) + b"\0\0" + frame(2)[:78])
    assert bare.recv(65536) == whole(frame(3))
    bare.send(confirmation(1))
    assert heard(link) == []
    assert link.send([frame(4)]) == 1
    assert bare.recv(65536) == datagram(FRAMES, compressed(1, frame(2), frame(4), [13, 15]))


def test_a_peer_that_confirms_nothing_gets_whole_frames(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    for block in range(500):
        assert link.send([frame(block)]) == 1
    came: list[bytes] = []
    while len(came) < 500:
        some = bare.recv(65536)
        if some[8] == FRAMES:
            came += unpack(some[12:], 64)
    assert came == [frame(block) for block in range(500)]


@pytest.mark.parametrize("ends", [65507], indirect=True)
def test_loopback_takes_whole_frames(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    for block in range(100):
        assert link.send([frame(block)]) == 1
        assert bare.recv(65536) == whole(frame(block))


def test_frames_keep_one_length_and_leave_in_runs(ends: tuple[Link, socket.socket]) -> None:
    """A word that differed lately is sent by frames in which it does not: so runs stay whole."""
    link, bare = ends
    known(link, bare)
    before = link.datagram_counts.tx_calls
    frames = [frame(2), *(frame(block) for block in range(7, 40)), frame(2)]
    assert link.send(frames[:2]) == 2  # word 13 is 0, then also 2
    assert link.send(frames) == len(frames)
    assert link.datagram_counts.tx_calls == before + 2
    words = [13, 15]
    got = [bare.recv(65536) for _ in range(len(frames) + 2)]
    assert got[2:] == [datagram(FRAMES, compressed(1, frame(2), one, words)) for one in frames]


def known(link: Link, bare: socket.socket) -> None:
    """The peer has the header of `frame(2)` as context 1."""
    for block in (1, 2, 3):
        assert link.send([frame(block)]) == 1
    for _ in range(4):
        bare.recv(65536)
    bare.send(confirmation(1))
    assert heard(link) == []


def test_a_confirmation_of_something_else_changes_nothing(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    for block in (1, 2):
        assert link.send([frame(block)]) == 1
    for _ in range(2):
        bare.recv(65536)
    for context in (0, 2, 17, 65535):
        bare.send(confirmation(context))
    bare.send(datagram(CONFIRMED))
    assert heard(link) == []
    assert link.send([frame(3)]) == 1
    assert bare.recv(65536)[8] == CONTEXT
    assert bare.recv(65536) == whole(frame(3))


def test_a_context_whose_place_is_taken_is_not_used(ends: tuple[Link, socket.socket]) -> None:
    """The seventeenth takes the first one's place, at both ends, and waits for its confirmation."""
    link, bare = ends

    def of_kind(kind: int, block: int) -> bytes:
        return bytes([kind]) * 70 + block.to_bytes(8, "big")

    for kind in range(1, 18):
        for block in range(3):
            assert link.send([of_kind(kind, block)]) == 1
        assert datagram(CONTEXT, number_of(kind) + b"\0\0" + of_kind(kind, 1)) in waiting(bare)
        if kind < 17:
            bare.send(confirmation(kind))
            assert heard(link) == []
    for kind in (1, 17):
        assert link.send([of_kind(kind, 9)]) == 1
        assert waiting(bare)[-1] == whole(of_kind(kind, 9))
    bare.send(confirmation(17))
    assert heard(link) == []
    for kind, context in ((17, 17), (2, 2)):
        assert link.send([of_kind(kind, 9)]) == 1
        expected = compressed(context, of_kind(kind, 1), of_kind(kind, 9), [19])
        assert waiting(bare)[-1] == datagram(FRAMES, expected)


def test_a_header_that_is_too_different_goes_whole(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    known(link, bare)
    other = bytes(58) + frame(2)[58:]
    assert link.send([other]) == 1
    assert bare.recv(65536) == whole(other)


# -- In --------------------------------------------------------------------------------------------


def store(link: Link, bare: socket.socket, context: int, header: bytes = HEADER) -> None:
    bare.send(datagram(CONTEXT, number_of(context) + b"\0\0" + header))
    assert heard(link) == []


def test_a_context_is_confirmed_and_used(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    store(link, bare, 1)
    assert bare.recv(65536) == confirmation(1)
    for now, words in ((frame(5), [13, 15]), (frame(5), range(20)), (HEADER, []), (HEADER, [0])):
        bare.send(datagram(FRAMES, compressed(1, HEADER, now, words)))
        assert heard(link) == [now]


def test_whole_and_compressed_frames_share_a_datagram(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    store(link, bare, 1)
    short = HEADER + b"lanes"
    first = compressed(1, HEADER, short, [])
    second = len(short).to_bytes(2, "little") + short
    body = first + bytes(-len(first) % 4) + second + bytes(-len(second) % 4) + first
    bare.send(datagram(FRAMES, body))
    assert heard(link) == [short] * 3


@pytest.mark.parametrize(
    "body",
    [
        compressed(2, HEADER, HEADER, []),
        compressed(0, HEADER, HEADER, []),
        compressed(17, HEADER, HEADER, []),
        compressed(1, HEADER, HEADER, range(20))[:-1],
        compressed(1, HEADER, HEADER + bytes(1971), []),
        (COMPRESSED | 3).to_bytes(2, "little") + b"\1\2\3",
        COMPRESSED.to_bytes(2, "little"),
    ],
    ids=["unknown", "zero", "other-of-its-place", "cut-off", "too-long", "no-head", "empty"],
)
def test_what_cannot_be_restored_is_counted(ends: tuple[Link, socket.socket], body: bytes) -> None:
    link, bare = ends
    store(link, bare, 1)
    length = (len(body) - 2 | COMPRESSED).to_bytes(2, "little")
    bare.send(datagram(FRAMES, length + body[2:]))
    good = compressed(1, HEADER, frame(5), [13, 15])
    bare.send(datagram(FRAMES, good))
    assert heard(link) == [frame(5)]
    assert link.counts.rx_too_short == 1


def test_the_last_sixteen_contexts_are_known(ends: tuple[Link, socket.socket]) -> None:
    link, bare = ends
    headers = [bytes([number]) * 78 for number in range(18)]
    for number in range(1, 18):
        store(link, bare, number, headers[number])
    for number in range(1, 18):
        bare.send(datagram(FRAMES, compressed(number, headers[number], headers[number], [])))
    assert heard(link) == headers[2:]
    store(link, bare, 1, headers[1])  # it has been overtaken by number 17
    bare.send(datagram(FRAMES, compressed(1, headers[1], headers[1], [])))
    bare.send(datagram(FRAMES, compressed(17, headers[17], headers[17], [])))
    assert heard(link) == [headers[17]]


@pytest.mark.parametrize("length", [0, 3, 4, 83])
def test_a_context_that_is_cut_off_is_not_stored(
    ends: tuple[Link, socket.socket], length: int
) -> None:
    link, bare = ends
    bare.send(datagram(CONTEXT, (number_of(1) + b"\0\0" + HEADER)[:length]))
    bare.send(datagram(FRAMES, compressed(1, HEADER, HEADER, [])))
    assert heard(link) == []


# -- Both ------------------------------------------------------------------------------------------


def test_no_frame_is_ever_restored_wrongly() -> None:
    """More kinds of headers than there are contexts, over a path that loses, doubles, overtakes."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    (one, here), (other, there) = joined(1472), joined(1472)
    kinds = [bytearray(rng.randbytes(78)) for _ in range(40)]
    held: list[tuple[socket.socket, bytes]] = []
    sent, restored, shortened = set(), 0, 0
    for step in range(600):
        for _ in range(rng.randrange(1, 30)):
            header = bytearray(kinds[min(rng.randrange(40), rng.randrange(40))])
            header[50:52] = step.to_bytes(2, "big")
            header[58:62] = rng.randbytes(4)
            made = bytes(header) + rng.randbytes(rng.choice([0, 5, 512, 1024]))
            sent.add(made)
            assert one.send([made]) == 1
        for bare, way in ((here, there), (there, here)):
            for some in waiting(bare):
                shortened += some[8] == FRAMES and some[13] >= 0x80
                held += [(way, some)] * rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 2])
        if rng.random() < 0.3:
            rng.shuffle(held)
        keep = rng.randrange(4) if step < 599 else 0
        for way, some in held[: len(held) - keep]:
            way.send(some)
        del held[: len(held) - keep]
        came = heard(other)
        heard(one)
        assert all(frame in sent for frame in came)
        restored += len(came)
    assert restored > 1000
    assert shortened > 1000
    assert one.counts.tx_frames == len(sent)
    for end in (one, here, other, there):
        end.close()
