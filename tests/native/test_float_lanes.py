# SPDX-License-Identifier: Apache-2.0
"""Over UDP lanes that stand for float32 leave in 28 bits (link/float_lanes.h).

At one end a link, at the other a bare socket that takes and says what the test wants.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from link_ends import NO_LINKS
from p4reduce.wire.format import (
    AGGREGATION_PORT,
    FLOAT_LANES,
    PAYLOAD_BYTES,
    Endpoint,
    Flag,
    Format,
    FrameKind,
    header_bytes,
    template,
)
from p4reduce_native.link import Link
from udp_datagrams import (
    COMPRESSED,
    CONTEXT,
    FRAMES,
    SHORTENED,
    confirmation,
    datagram,
    ends_of,
    heard,
    joined,
    number_of,
    waiting,
)

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

HEADER_BYTES = 78
LANES = PAYLOAD_BYTES // 4
RANK = Endpoint("02:00:00:00:00:01", "10.0.0.1", 4000)
SWITCH = Endpoint("02:00:00:00:00:fe", "10.0.0.254", AGGREGATION_PORT)

Lanes = Sequence[int]


def shortened(lanes: Lanes) -> bytes:
    """The plain specification, of lanes with 24 significant bits each."""
    shifts = [max(0, min(7, abs(lane).bit_length() - 24)) for lane in lanes]
    assert all(lane % (1 << shift) == 0 for lane, shift in zip(lanes, shifts, strict=True))
    parts = [(lane >> shift) % 2**25 for lane, shift in zip(lanes, shifts, strict=True)]
    rest = [part >> 24 | shift << 1 for part, shift in zip(parts, shifts, strict=True)]
    half = len(lanes) // 2
    return (
        struct.pack(f"<{len(lanes)}H", *(part % 2**16 for part in parts))
        + bytes(part >> 16 & 255 for part in parts)
        + bytes(low | high << 4 for low, high in zip(rest[:half], rest[half:], strict=True))
    )


def bytes_of(lanes: Lanes) -> bytes:
    return struct.pack(f">{len(lanes)}i", *lanes)


def filled(*lanes: int) -> list[int]:
    """These lanes, and zeros."""
    return [*lanes, *[0] * (LANES - len(lanes))]


def contribution(payload: bytes, **fields: int) -> bytes:
    fields = {"flags": Flag.PAYLOAD, "tag": FLOAT_LANES | 5} | fields
    return template(RANK, SWITCH, header_bytes(kind=FrameKind.CONTRIBUTE, **fields), payload)


def result(payload: bytes, **fields: int) -> bytes:
    fields = {"flags": Flag.PAYLOAD, "tag": FLOAT_LANES | 5} | fields
    return template(SWITCH, RANK, header_bytes(kind=FrameKind.RESULT, **fields), payload)


@pytest.fixture
def bare_end() -> Iterator[tuple[Link, socket.socket]]:
    with ends_of() as ends:
        yield ends


def record_of(
    link: Link,
    bare: socket.socket,
    frame: bytes,
    confirm: Callable[[int], bytes] = confirmation,
) -> tuple[int, bytes]:
    """Send a frame whose header the peer has stored: its record's bits, and what is for lanes."""
    for block in (1, 2, 3):  # a header is stored when a second one is like it
        assert link.send([frame[:61] + bytes([block]) + frame[62:]]) == 1
    (context,) = (one for one in waiting(bare) if one[8] == CONTEXT)
    bare.send(confirm(int.from_bytes(context[12:14], "little")))
    assert heard(link) == []
    assert link.send([frame]) == 1
    (came,) = waiting(bare)
    length, words = struct.unpack_from("<HI", came, 12)
    assert len(came) == 14 + length % SHORTENED
    return length // SHORTENED * SHORTENED, came[18 + 4 * (words % 2**20).bit_count() :]


# -- Out -------------------------------------------------------------------------------------------

EDGES = filled(0, 1, -1, 2**24 - 1, -(2**24) + 1, 2**24, -(2**24), 2**31 - 128, -(2**31), 3 << 29)


def test_a_contribution_of_float32_leaves_in_28_bits(bare_end: tuple[Link, socket.socket]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    numbers = np.rint(rng.standard_normal(LANES) * 2.0 ** rng.integers(0, 28, LANES))
    lanes = numbers.astype(np.float32).astype(int).tolist()
    record = record_of(*bare_end, contribution(bytes_of(lanes)))
    assert record == (COMPRESSED | SHORTENED, shortened(lanes))


def test_the_largest_and_smallest_lanes_leave_in_28_bits(
    bare_end: tuple[Link, socket.socket],
) -> None:
    record = record_of(*bare_end, contribution(bytes_of(EDGES)))
    assert record == (COMPRESSED | SHORTENED, shortened(EDGES))


@pytest.mark.parametrize("lane", [2**24 + 1, -(2**24) - 1, 2**30 + 32, 2**31 - 1])
def test_a_contribution_is_never_rounded(bare_end: tuple[Link, socket.socket], lane: int) -> None:
    """One of a switch below another one is a sum, which may have more bits."""
    payload = bytes_of(filled(5, lane))
    assert record_of(*bare_end, contribution(payload)) == (COMPRESSED, payload)


@pytest.mark.parametrize(
    ("lane", "rounded"),
    [
        (2**24 + 1, 2**24),
        (2**24 + 3, 2**24 + 4),
        (-(2**24) - 3, -(2**24) - 4),
        (2**25 - 1, 2**25),
        (2**30 + 64, 2**30),
        (2**31 - 65, 2**31 - 128),
        (-(2**31) + 1, -(2**31)),
    ],
)
def test_a_sum_is_rounded_to_float32(
    bare_end: tuple[Link, socket.socket], lane: int, rounded: int
) -> None:
    """To nearest, ties to even, as its receivers do."""
    assert np.float32(lane) == np.float32(rounded)
    record = record_of(*bare_end, result(bytes_of(filled(lane, 3))))
    assert record == (COMPRESSED | SHORTENED, shortened(filled(rounded, 3)))


def test_a_sum_that_would_leave_the_lanes_goes_whole(bare_end: tuple[Link, socket.socket]) -> None:
    payload = bytes_of(filled(2**31 - 64))  # the nearest float32 is 2^31
    assert record_of(*bare_end, result(payload)) == (COMPRESSED, payload)


def test_half_a_result_is_shortened(bare_end: tuple[Link, socket.socket]) -> None:
    lanes = filled(7, -9)[: LANES // 2]
    half = result(bytes_of(lanes), flags=Flag.PAYLOAD | Flag.FIRST_HALF)
    assert record_of(*bare_end, half) == (COMPRESSED | SHORTENED, shortened(lanes))


OTHER_PORT = Endpoint(SWITCH.mac, SWITCH.ip, AGGREGATION_PORT + 1)
FULL = bytes_of(filled(2**24 + 1, 3))


def not_of_version_1(frame: bytes) -> bytes:
    return frame[:42] + bytes([frame[42] | 0xF0]) + frame[43:]


@pytest.mark.parametrize(
    "frame",
    [
        result(FULL, tag=FLOAT_LANES - 1),
        result(FULL, format=Format.WRAP32),
        result(FULL, format=Format.INT16),
        not_of_version_1(result(FULL)),
        template(OTHER_PORT, RANK, header_bytes(kind=FrameKind.RESULT, tag=FLOAT_LANES), FULL),
        template(RANK, SWITCH, header_bytes(kind=FrameKind.RESULT, tag=FLOAT_LANES), FULL),
        template(SWITCH, RANK, header_bytes(kind=FrameKind.CONTRIBUTE, tag=FLOAT_LANES), FULL),
        template(SWITCH, RANK, header_bytes(kind=FrameKind.STATUS, tag=FLOAT_LANES), FULL),
        result(FULL + b"more than lanes"),
        result(FULL[:-4]),
    ],
    ids=[
        "integers",
        "words",
        "narrow",
        "version",
        "port",
        "result-to-a-switch",
        "contribution-of-a-switch",
        "status",
        "long",
        "odd",
    ],
)
def test_nothing_else_is_touched(bare_end: tuple[Link, socket.socket], frame: bytes) -> None:
    assert record_of(*bare_end, frame) == (COMPRESSED, frame[HEADER_BYTES:])


def test_a_peer_that_does_not_say_so_gets_whole_lanes(
    bare_end: tuple[Link, socket.socket],
) -> None:
    payload = bytes_of(EDGES)
    record = record_of(
        *bare_end, contribution(payload), lambda number: confirmation(number, can=b"\0")
    )
    assert record == (COMPRESSED, payload)


# -- In --------------------------------------------------------------------------------------------


def store(link: Link, bare: socket.socket, frame: bytes) -> None:
    bare.send(datagram(CONTEXT, number_of(1) + b"\0\0" + frame[:HEADER_BYTES]))
    assert heard(link) == []


def record_with(lanes: bytes) -> bytes:
    body = (1 << 20).to_bytes(4, "little") + lanes
    return (len(body) | COMPRESSED | SHORTENED).to_bytes(2, "little") + body


@pytest.mark.parametrize("lanes", [EDGES, EDGES[: LANES // 2], EDGES[:2]])
def test_lanes_are_restored(bare_end: tuple[Link, socket.socket], lanes: Lanes) -> None:
    link, bare = bare_end
    store(link, bare, result(b""))
    bare.send(datagram(FRAMES, record_with(shortened(lanes))))
    assert heard(link) == [result(b"")[:HEADER_BYTES] + bytes_of(lanes)]


def test_every_code_is_a_lane(bare_end: tuple[Link, socket.socket]) -> None:
    """What a peer sends against the rules is restored to something, and never beyond a lane."""
    link, bare = bare_end
    store(link, bare, result(b""))
    for byte in (0x00, 0x5A, 0xA5, 0xFF):
        bare.send(datagram(FRAMES, record_with(bytes([byte]) * (LANES // 2 * 7))))
        (frame,) = heard(link)
        assert len(frame) == HEADER_BYTES + PAYLOAD_BYTES
    assert struct.unpack(">i", frame[-4:]) == (-128,)


@pytest.mark.parametrize("length", [0, 1, 6, 8, LANES // 2 * 7 - 1, LANES // 2 * 7 + 7])
def test_lanes_of_no_length_are_dropped(bare_end: tuple[Link, socket.socket], length: int) -> None:
    link, bare = bare_end
    store(link, bare, result(b""))
    bare.send(datagram(FRAMES, record_with(bytes(length))))
    bare.send(datagram(FRAMES, record_with(shortened(EDGES))))
    assert heard(link) == [result(b"")[:HEADER_BYTES] + bytes_of(EDGES)]
    assert link.counts.rx_too_short == 1


# -- Both ------------------------------------------------------------------------------------------


def test_receivers_find_the_same_float32() -> None:
    """Sums of any bits: the link's far end has what rounds to the same numbers, in runs."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    (one, here), (other, there) = joined(1472), joined(1472)
    sums = [
        rng.integers(-(2**31), 2**31 - 64, LANES) >> rng.integers(0, 31, LANES) for _ in range(400)
    ]
    frames = [result(bytes_of(lanes.tolist()), block=block) for block, lanes in enumerate(sums)]
    came: list[bytes] = []
    sent = 0
    for first in range(0, len(frames), 20):
        assert one.send(frames[first : first + 20]) == 20
        for bare, to in ((here, there), (there, here)):
            for some in waiting(bare):
                sent += len(some)
                to.send(some)
        came += heard(other)
        heard(one)
        for some in waiting(there):
            here.send(some)
        heard(one)
    assert [frame[:HEADER_BYTES] for frame in came] == [frame[:HEADER_BYTES] for frame in frames]
    for frame, lanes in zip(came, sums, strict=True):
        found = np.frombuffer(frame, ">i4", LANES, HEADER_BYTES)
        assert np.array_equal(found.astype(np.float32), lanes.astype(np.float32))
    assert sent < 0.93 * sum(len(frame) + 14 for frame in frames)
    for end in (one, here, other, there):
        end.close()
