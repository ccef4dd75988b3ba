# SPDX-License-Identifier: Apache-2.0
"""Digests: how samples become lists by a clock of the test's, and P4Runtime's side of it.

Of programs/digests.p4: bit 0 of the first byte asks for a `learned_t`, bit 1 for a `seen_t`.
"""

from __future__ import annotations

import queue
import struct
import time
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1.p4data_pb2 import P4Data
from p4reduce_switch.p4runtime.entities.digests import digest_message
from p4reduce_switch.p4runtime.p4info import DigestSpec
from p4reduce_switch.state.digests import Digest, DigestConfig, Sample
from p4reduce_switch.state.timers import Timers
from p4rt_client import DELETE, INSERT, MODIFY, BatchError, Builder, Client
from pipeline_programs import load
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

BUILD = Builder("digests")
LEARNED, SEEN = BUILD.id("learned_t"), BUILD.id("seen_t")
MS = 1_000_000


def frame(which: int, port: int = 7, address: int = 0x020304050607) -> bytes:
    return struct.pack(">BBH", which, 0, port) + address.to_bytes(6, "big") + b"tail"


# -- Lists ---------------------------------------------------------------------------------------


class Bench:
    """A digest by itself, its lists, and its time."""

    def __init__(self, config: DigestConfig | None) -> None:
        self.now = 1_000
        self.timers = Timers(lambda: self.now)
        self.digest = Digest("d", self.timers)
        self.digest.configure(config)
        self.lists: list[tuple[int, list[Sample]]] = []
        self.digest.sink = lambda _, number, samples: self.lists.append((number, samples))

    def wait(self, nanoseconds: int) -> None:
        self.now += nanoseconds
        self.timers.run_due()

    def taken(self) -> list[tuple[int, list[Sample]]]:
        lists, self.lists = self.lists, []
        return lists


def test_nothing_without_a_configuration() -> None:
    bench = Bench(None)
    bench.digest.learn(1)
    bench.wait(MS)
    assert bench.taken() == []


def test_a_list_is_sent_when_it_is_full() -> None:
    bench = Bench(DigestConfig(max_timeout_ns=MS, max_list_size=2, ack_timeout_ns=0))
    for value in (1, 1, 2, 3):
        bench.digest.learn(value, 0)
    assert bench.taken() == [(1, [(1, 0), (2, 0)])]
    bench.wait(MS - 1)
    assert bench.taken() == []
    bench.wait(1)
    assert bench.taken() == [(2, [(3, 0)])]


def test_a_list_fits_into_a_message() -> None:
    bench = Bench(DigestConfig(10 * MS, max_list_size=5, ack_timeout_ns=0, most_samples=2))
    for sample in range(5):
        bench.digest.learn(sample)
    assert bench.taken() == [(1, [(0,), (1,)]), (2, [(2,), (3,)])]


def test_the_timeout_counts_from_the_first_of_a_list() -> None:
    bench = Bench(DigestConfig(max_timeout_ns=10, max_list_size=2, ack_timeout_ns=0))
    bench.digest.learn(1)
    bench.wait(5)
    bench.digest.learn(2)
    bench.digest.learn(3)
    assert bench.taken() == [(1, [(1,), (2,)])]
    bench.wait(9)  # the timer of the first list is over, that of the second is not
    assert bench.taken() == []
    bench.wait(1)
    assert bench.taken() == [(2, [(3,)])]


def test_no_buffering_without_a_timeout() -> None:
    bench = Bench(DigestConfig(max_timeout_ns=0, max_list_size=50, ack_timeout_ns=0))
    bench.digest.learn(1)
    bench.digest.learn(1)
    assert bench.taken() == [(1, [(1,)]), (2, [(1,)])]


def test_acknowledgements() -> None:
    bench = Bench(DigestConfig(max_timeout_ns=0, max_list_size=1, ack_timeout_ns=100))
    bench.digest.learn(1)
    bench.digest.learn(2)
    bench.digest.learn(1)
    assert bench.taken() == [(1, [(1,)]), (2, [(2,)])]
    bench.digest.acknowledge(1)
    bench.digest.acknowledge(1)
    bench.digest.acknowledge(77)
    bench.digest.learn(1)
    bench.digest.learn(2)
    assert bench.taken() == [(3, [(1,)])]
    bench.wait(100)
    bench.digest.learn(2)
    assert bench.taken() == [(4, [(2,)])]


def test_what_changes_the_configuration_forgets() -> None:
    config = DigestConfig(max_timeout_ns=10, max_list_size=5, ack_timeout_ns=100)
    bench = Bench(config)
    bench.digest.learn(1)
    bench.digest.configure(None)
    bench.digest.configure(config)
    bench.digest.learn(2)
    bench.wait(10)
    assert bench.taken() == [(2, [(2,)])]


def test_samples_of_packets() -> None:
    pipeline = load("digests")
    got: list[Any] = []
    for digest in pipeline.digests.values():
        digest.configure(DigestConfig(0, 1, 0))
        digest.sink = lambda name, number, samples: got.append((name, number, samples))
    address = 0x020304050607
    assert pipeline.process(3, frame(1, 0xFFFF)) == [
        (255, frame(1, 0xFFFF, 0)[:1] + b"\1" + frame(1, 0xFFFF, 0)[2:])
    ]
    assert got.pop() == ("learned_t", 1, [(address, 0x1FF, 1)])
    pipeline.process(3, frame(0x81))
    assert got.pop() == ("learned_t", 2, [(address, 7, 0x81)])
    # Dropped, or ended early, makes no difference; of two digests the last one is sent.
    assert pipeline.process(3, frame(4 | 1)) == []
    assert got.pop() == ("learned_t", 3, [(address, 7, 5)])
    pipeline.process(3, frame(8 | 3))
    assert got == [("seen_t", 1, [(7,)])]
    pipeline.process(3, frame(0))
    assert len(got) == 1


# -- P4Runtime -----------------------------------------------------------------------------------


def entry(digest: int, **config: int) -> Any:
    message = p4rt.DigestEntry(digest_id=digest, config=config)
    message.config.SetInParent()
    return message


def next_digest(client: Client) -> Any:
    while True:
        message = client.next()
        if message.HasField("digest"):
            return message.digest


def nothing_more(client: Client, after: bytes = b"") -> None:
    """That a frame comes back, and no digest before it."""
    client.send(packet={"payload": after or frame(0)})
    assert client.next().HasField("packet")


def struct_of(*members: bytes) -> Any:
    return P4Data(struct={"members": [{"bitstring": m} for m in members]})


def test_lists_on_the_stream(start: Start) -> None:
    client = start("digests")
    client.write((INSERT, entry(LEARNED, max_list_size=1, ack_timeout_ns=3600 * 1000 * MS)))
    before = time.time_ns()
    client.send(packet={"payload": frame(1)})
    message = next_digest(client)
    assert message.digest_id == LEARNED
    assert list(message.data) == [struct_of(bytes.fromhex("020304050607"), b"\7", b"\1")]
    if message.timestamp > 1 << 60:  # BMv2's clock starts elsewhere
        assert message.timestamp >= before
    client.send(digest_ack={"digest_id": LEARNED, "list_id": message.list_id})
    client.send(packet={"payload": frame(1, 300)})
    again = next_digest(client)
    assert again.list_id == message.list_id + 1
    assert list(again.data) == [struct_of(bytes.fromhex("020304050607"), b"\1\x2c", b"\1")]


def test_a_list_of_several(start_ours: Start) -> None:
    client = start_ours("digests")
    client.write((INSERT, entry(SEEN, max_timeout_ns=3600 * 1000 * MS, max_list_size=3)))
    exchange(client, frame(1, 9))  # of the other digest, which is not configured
    for port in (1, 2, 1, 2, 3):
        client.send(packet={"payload": frame(2, port)})
    message = next_digest(client)
    assert list(message.data) == [struct_of(bytes((port,))) for port in (1, 2, 3)]


def test_the_switch_keeps_the_timeout(start_ours: Start) -> None:
    client = start_ours("digests")
    client.write((INSERT, entry(SEEN, max_timeout_ns=20 * MS)))
    exchange(client, frame(2, 5))
    assert list(next_digest(client).data) == [struct_of(b"\5")]


def test_unacknowledged_data_is_not_sent_again(start_ours: Start) -> None:
    client = start_ours("digests")
    client.write((INSERT, entry(SEEN, ack_timeout_ns=3600 * 1000 * MS)))
    client.send(packet={"payload": frame(2)})
    message = next_digest(client)
    assert client.next().HasField("packet")
    nothing_more(client, frame(2))
    client.send(digest_ack={"digest_id": SEEN, "list_id": message.list_id})
    client.send(packet={"payload": frame(2)})
    assert next_digest(client).list_id == message.list_id + 1


@pytest.mark.parametrize(
    ("value", "width", "signed", "wanted"),
    [
        (0, 12, False, b"\0"),
        (200, 16, False, b"\xc8"),
        # The table of the specification's section "Bytestrings".
        (99, 8, True, b"\x63"),
        (-99, 8, True, b"\x9d"),
        (-739, 12, True, b"\xfd\x1d"),
        (0, 16, True, b"\0"),
        (200, 16, True, b"\0\xc8"),
    ],
)
def test_byte_strings(value: int, width: int, signed: bool, wanted: bytes) -> None:
    spec = DigestSpec(5, "d", "tuple", ((width, signed),), "d")
    message = digest_message(spec, 3, [(value,)]).digest
    assert (message.digest_id, message.list_id) == (5, 3)
    assert [m.bitstring for m in message.data[0].tuple.members] == [wanted]


def test_configuration(start: Start) -> None:
    client = start("digests")
    written = entry(LEARNED, max_timeout_ns=5, max_list_size=6, ack_timeout_ns=7)
    assert client.refused(MODIFY, written)[0] == "NOT_FOUND"
    client.write((INSERT, written))
    assert client.refused(INSERT, written)[0] == "ALREADY_EXISTS"
    assert client.read(p4rt.DigestEntry(digest_id=LEARNED)) == [written]
    changed = entry(LEARNED, max_list_size=1)
    client.write((MODIFY, changed))
    assert client.read(p4rt.DigestEntry(digest_id=LEARNED)) == [changed]
    client.write((DELETE, p4rt.DigestEntry(digest_id=LEARNED)))
    with pytest.raises((BatchError, grpc.RpcError), match="not configured"):
        client.read(p4rt.DigestEntry(digest_id=LEARNED))
    assert client.refused(DELETE, changed)[0] == "NOT_FOUND"
    nothing_more(client, frame(1))


def test_refused(start_ours: Start) -> None:
    client = start_ours("digests")
    assert client.refused(INSERT, entry(5)) == (
        "INVALID_ARGUMENT",
        "this pipeline has no digest with id 0x5; its digests are 'learned_t', 'seen_t'",
    )
    code, text = client.refused(INSERT, entry(SEEN, max_list_size=-1))
    assert (code, "max_list_size" in text) == ("INVALID_ARGUMENT", True)
    client.write((INSERT, entry(SEEN)))
    assert client.read(p4rt.DigestEntry()) == [entry(SEEN)]
    client.send(digest_ack={"digest_id": 5})
    assert "no digest with id 0x5" in client.next().error.message


def test_only_the_primary_gets_digests(start_ours: Start) -> None:
    client = start_ours("digests")
    client.write((INSERT, entry(SEEN)))
    client.send(packet={"payload": frame(2)})
    next_digest(client)
    client.arbitrate(election_id=0)  # steps down
    while not client.next().HasField("arbitration"):
        pass
    client.send(digest_ack={"digest_id": SEEN})
    assert "only the primary" in client.next().error.message
    with pytest.raises(queue.Empty):
        client.received.get_nowait()
