# SPDX-License-Identifier: Apache-2.0
"""Digests of lists (programs/tuple_digests.p4), which have other names in P4Info and program."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.p4runtime.digest_names import pair_digests
from p4rt_client import INSERT, Builder, Client, config
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

BUILD = Builder("tuple_digests")
OF_ACTION, OF_THREE, OF_PORT, OF_ADDRESS = (BUILD.id(f"digest_{n}") for n in range(4))
SEEN = BUILD.id("seen_t")
# What of the first byte asks for which digest.
ASK_THREE, ASK_PORT, ASK_ADDRESS, ASK_ACTION, ASK_SEEN = 1, 2, 4, 8, 16


def frame(which: int, answer: int = 0) -> bytes:
    return struct.pack(">BBH", which, answer, 0x107) + bytes.fromhex("020304050607") + b"tail"


def learned(client: Client, which: int) -> tuple[int, list[tuple[int, ...]]]:
    """Send a frame; the digest's id, and its samples as numbers."""
    client.send(packet={"payload": frame(which)})
    digest, packet = None, False
    while digest is None or not packet:
        message = client.next()
        assert isinstance(message, p4rt.StreamMessageResponse), f"the stream ended: {message}"
        packet = packet or message.HasField("packet")
        if message.HasField("digest"):
            digest = message.digest
    samples = []
    for data in digest.data:
        members = getattr(data, data.WhichOneof("data")).members
        samples.append(tuple(int.from_bytes(m.bitstring, "big") for m in members))
    return digest.digest_id, samples


def test_each_is_told_by_its_own_id(start_ours: Start) -> None:
    client = start_ours("tuple_digests")
    for number in (OF_ACTION, OF_THREE, OF_PORT, OF_ADDRESS, SEEN):
        entry = p4rt.DigestEntry(digest_id=number, config={"max_list_size": 1})
        client.write((INSERT, entry))
        assert client.read(p4rt.DigestEntry(digest_id=number)) == [entry]
    assert learned(client, ASK_THREE) == (OF_THREE, [(0x020304050607, 0x107, ASK_THREE)])
    assert learned(client, ASK_PORT) == (OF_PORT, [(0x107,)])
    assert learned(client, ASK_ADDRESS) == (OF_ADDRESS, [(0x0607,)])
    assert learned(client, ASK_ACTION) == (OF_ACTION, [(0x99, 0x107)])
    assert learned(client, ASK_SEEN) == (SEEN, [(0x107,)])


@pytest.mark.parametrize("which", range(8))
def test_frames_are_those_of_bmv2(start: Start, which: int) -> None:
    """BMv2 takes the program and its P4Info, but finds none of these digests."""
    assert exchange(start("tuple_digests"), frame(which)) == frame(which, answer=1)


def test_a_p4info_that_fits_in_two_ways_is_refused(start_ours: Start) -> None:
    client = start_ours("tuple_digests")
    other: Any = config("tuple_digests")
    more = other.p4info.digests.add()
    more.CopyFrom(next(d for d in other.p4info.digests if d.preamble.id == OF_PORT))
    more.preamble.id, more.preamble.name = 0x17000001, "digest_9"
    with pytest.raises(Exception, match="digest 'digest_0' is not in the program"):
        client.set_config(other)


A, B = (48, 9), (16,)


@pytest.mark.parametrize(
    ("said", "loaded", "pairs"),
    [
        ({"learn_t": A}, {"learn_t": A}, {}),
        ({"digest_0": A, "s": B}, {"s": B, "tuple_0#1": A}, {"digest_0": "tuple_0#1"}),
        ({"digest_0": B, "digest_1": B}, {"x": B, "y": B}, {"digest_0": "x", "digest_1": "y"}),
        # Calls that no packet reaches are in the P4Info only.
        ({"digest_0": A, "digest_1": B}, {"x": B}, {"digest_1": "x"}),
        (
            {"digest_0": B, "digest_1": A, "digest_2": B},
            {"x": B, "y": A},
            {"digest_0": "x", "digest_1": "y"},
        ),
        ({"digest_0": B, "digest_1": B}, {"x": B}, {}),
        ({"digest_0": A}, {"x": B}, {}),
        ({"digest_0": A}, {}, {}),
    ],
)
def test_pairs(said: Any, loaded: Any, pairs: dict[str, str]) -> None:
    assert pair_digests(said, loaded) == pairs
