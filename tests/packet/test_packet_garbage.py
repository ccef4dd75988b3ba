# SPDX-License-Identifier: Apache-2.0
"""Anything at all at any port: no crash, every frame accounted for, and all works afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Job, Jobs, constant
from packet_testbed import BROADCAST, EXPERIMENTAL, PORTS, SWITCH, VLAN_TYPES, Seen, Testbed
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

FRAMES = 2000
BATCH = 200
LONGEST = 1514

Sent = tuple[int, bytes]
Rng = np.random.Generator


@pytest.fixture
def bystanders(bed: Testbed, jobs: Jobs) -> Iterator[None]:
    """Two jobs in the middle of a round before the test; both finish it after the test, and one
    has a round with lanes, a result kept and a repetition on top."""
    # A mutation of another job's frames must not turn them into one of these.
    waiting, kept = jobs(4, far=True), jobs(2, far=True)
    for rank in range(3):
        bed.exchange([waiting.send(rank, constant(rank + 1))])
    bed.exchange([kept.send(0, constant(5))])
    bed.exchange([kept.send(1, constant(6))])
    yield
    last = waiting.send(3, constant(4))
    bed.expect([last], waiting.results(last, constant(10)), FrameOutcome.ROUND_COMPLETED)
    again = kept.send(0, flags=Flag.PADDED)
    bed.expect([again], kept.repeated(again, 0, constant(11)), FrameOutcome.RESULT_REPEATED)
    finish(bed, kept, 7)


def finish(bed: Testbed, job: Job, turn: int) -> None:
    """A whole round."""
    bed.expect([job.send(0, constant(1), round=turn)], {}, FrameOutcome.ROUND_OPENED)
    last = job.send(1, constant(2), round=turn)
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def hail(bed: Testbed, sent: list[Sent]) -> Seen:
    """Send all, and assert what is so whatever they are: each frame that entered was counted
    once, all that was punted came, and nothing grew beyond what a frame of ours has."""
    total = Seen()
    for start in range(0, len(sent), BATCH):
        part = sent[start : start + BATCH]
        seen = bed.exchange(part)
        assert sum(seen.outcomes.values()) == sum(bed.enters(*each) for each in part)
        assert seen.outcomes[FrameOutcome.UNSET] == 0
        assert len(seen.packet_ins) == seen.outcomes[FrameOutcome.HELLO_PUNTED]
        longest = max(wire.PAYLOAD_FRAME_BYTES, *(len(frame) for _, frame in part))
        assert all(len(frame) <= longest for frame in seen.frames)
        total.outcomes.update(seen.outcomes)
    return total


def mutate(rng: Rng, frame: bytes) -> bytes:
    """Flip, overwrite, cut, lengthen or repeat some of the bytes."""
    out = bytearray(frame)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(out)))
        match int(rng.integers(6)):
            case 0:
                out[at] ^= 1 << int(rng.integers(8))
            case 1:
                out[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            case 2:
                out = out[: max(at, 14)]
            case 3:
                out += rng.bytes(int(rng.integers(1, 64)))
            case 4:
                out[at:at] = out[: int(rng.integers(1, 40))]
            case 5:
                end = min(at + int(rng.integers(1, 5)), len(out))
                out[at:end] = rng.bytes(end - at)
    return bytes(out[:LONGEST])


def with_right_checksum(frame: bytes) -> bytes:
    """The same with IPv4's checksum as it must be, so that it gets further in."""
    if len(frame) < 34:
        return frame
    header = frame[14:24] + b"\0\0" + frame[26:34]
    ones = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2))
    ones = (ones & 0xFFFF) + (ones >> 16)
    ones = (ones & 0xFFFF) + (ones >> 16)
    return frame[:24] + (~ones & 0xFFFF).to_bytes(2, "big") + frame[26:]


def good_frames(job: Job, turn: int) -> list[Sent]:
    """One of each kind that the switch knows."""
    host = Ether(src="02:00:00:00:00:07", dst=SWITCH.mac)
    ping = host / IP(src="10.77.0.7", dst=SWITCH.ip) / ICMP() / Raw(b"0123456")
    who_has = ARP(op=1, hwsrc="02:00:00:00:00:07", psrc="10.77.0.7", pdst=SWITCH.ip)
    arp = Ether(src="02:00:00:00:00:07", dst=BROADCAST) / who_has
    hello = wire.template(
        job.ranks[0].at, SWITCH, Aggregation(kind=FrameKind.HELLO, job=job.id, contributors=1)
    )
    return [
        job.send(0, constant(1), round=turn),
        job.send(1, round=turn),
        job.send(1, flags=Flag.PADDED | Flag.RETRANSMISSION, round=turn),
        (1, bytes(ping)),
        (2, bytes(arp)),
        (3, hello),
        (4, bytes(Ether(src="02:00:00:00:00:08", dst=BROADCAST, type=EXPERIMENTAL) / Raw(b"x"))),
    ]


@pytest.mark.fuzz
@pytest.mark.usefixtures("bystanders")
def test_noise(bed: Testbed, fuzz: Any) -> None:
    """Random bytes of random length."""
    rng = fuzz.numpy
    for _ in fuzz.rounds(1):
        frames = [rng.bytes(int(rng.integers(14, LONGEST + 1))) for _ in range(FRAMES // 4)]
        hail(bed, [(int(rng.choice(PORTS)), frame) for frame in frames])


@pytest.mark.fuzz
@pytest.mark.usefixtures("bystanders")
def test_noise_behind_right_headers(bed: Testbed, jobs: Jobs, fuzz: Any) -> None:
    """Random bytes from each header on, so that every state of the parser gets some."""
    rng = fuzz.numpy
    job = jobs(2)
    frame = job.frame(0, constant(1))
    starts = [14, 34, 42, 78]
    for _ in fuzz.rounds(1):
        sent = []
        for _ in range(FRAMES // 2):
            start = int(rng.choice(starts))
            body = rng.bytes(int(rng.integers(LONGEST - start)))
            sent.append((int(rng.choice(PORTS)), frame[:start] + body))
        hail(bed, sent)
    fresh = jobs(2)  # a body may have been a good contribution to any round of the other
    finish(bed, fresh, 0)


@pytest.mark.fuzz
@pytest.mark.usefixtures("bystanders")
@pytest.mark.parametrize("checksum", ["kept", "made-right"])
def test_mutations(bed: Testbed, jobs: Jobs, fuzz: Any, checksum: str) -> None:
    """Frames that are nearly right, of all kinds."""
    rng = fuzz.numpy
    job = jobs(2)
    for turn in fuzz.rounds(1):
        kinds = good_frames(job, turn)
        sent = []
        for _ in range(FRAMES):
            port, frame = kinds[int(rng.integers(len(kinds)))]
            frame = mutate(rng, frame)
            if checksum == "made-right":
                frame = with_right_checksum(frame)
            sent.append((port if rng.random() < 0.8 else int(rng.choice(PORTS)), frame))
        outcomes = hail(bed, sent).outcomes
        assert outcomes[FrameOutcome.MALFORMED] > 0
    fresh = jobs(2)  # a mutation may have been a good contribution to any round of the other
    finish(bed, fresh, 0)


@pytest.mark.usefixtures("bystanders")
def test_every_frame_counts_once(bed: Testbed, jobs: Jobs, rng: Rng) -> None:
    """A mix of good, repeated, late and bad ones; the switch's own account must be exact."""
    job = jobs(2)
    kinds = [frame for turn in range(6) for frame in good_frames(job, turn)]
    sent = [kinds[choice] for choice in rng.integers(len(kinds), size=400)]
    port, bad = job.send(0, constant(1), version=3)
    sent += [(port, bad), (port, bad[:50]), (port, bad + b"\0"), (4, job.frame(0))]
    outcomes = hail(bed, sent).outcomes
    assert outcomes[FrameOutcome.BAD_VERSION] == 1
    assert outcomes[FrameOutcome.MALFORMED] == 2
    assert outcomes[FrameOutcome.NOT_ADMITTED] == 1
    finish(bed, job, 100)


@pytest.mark.usefixtures("bystanders")
def test_frames_that_end_within_a_vlan_tag(bed: Testbed) -> None:
    addresses = bytes.fromhex("ffffffffffff 020000000008")
    hail(
        bed,
        [
            (port, addresses + kind + bytes(more))
            for port in PORTS
            for kind in VLAN_TYPES
            for more in range(12)
        ],
    )


@pytest.mark.usefixtures("bystanders")
@pytest.mark.parametrize("kind", list(range(16)))
def test_every_kind_and_flag(bed: Testbed, jobs: Jobs, kind: int) -> None:
    """All 4,096 beginnings of the header, with and without lanes behind it."""
    job = jobs(2)
    sent = []
    frame = job.frame(0)
    for flags in range(256):
        empty = bytearray(frame)
        empty[wire.AGG_OFFSET + 15] = flags  # the round
        empty[wire.AGG_OFFSET : wire.AGG_OFFSET + 2] = bytes([0x10 | kind, flags])
        has_lanes = flags & (Flag.PAYLOAD | Flag.PADDED)
        whole = with_lengths(bytes(empty) + bytes(1024)) if has_lanes else bytes(empty)
        sent += [(job.ranks[0].port, whole), (job.ranks[0].port, bytes(empty))]
    hail(bed, sent)
    finish(bed, job, 1000)


def with_lengths(frame: bytes) -> bytes:
    """IPv4's and UDP's lengths as the frame's is."""
    ip_length, udp_length = len(frame) - 14, len(frame) - 34
    frame = frame[:16] + ip_length.to_bytes(2, "big") + frame[18:]
    return with_right_checksum(frame[:38] + udp_length.to_bytes(2, "big") + frame[40:])
