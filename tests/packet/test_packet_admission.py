# SPDX-License-Identifier: Apache-2.0
"""Everything that a contribution can be refused for: dropped, counted under the reason, and the
round that it was aimed at does not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.values.mac_ip import parse_ip
from packet_jobs import Job, Jobs, constant
from packet_testbed import PORTS, SWITCH, Testbed
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

Sent = tuple[int, bytes]


@pytest.fixture
def job(bed: Testbed, jobs: Jobs) -> Job:
    """Its round 0 in slot 0 lacks rank 1."""
    made = jobs(2)
    bed.expect([made.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    return made


def refuse(bed: Testbed, job: Job, sent: Sent, outcome: FrameOutcome) -> None:
    """Assert that `sent` is dropped and counted, and the round continues as if it had not been."""
    bed.expect([sent], {}, outcome)
    good = job.send(1, constant(2))
    bed.expect([good], job.results(good, constant(3)), FrameOutcome.ROUND_COMPLETED)


def changed(frame: bytes, change: Callable[[Packet], object], *, keep: bool = False) -> bytes:
    """The frame after `change`, with the IPv4 checksum made right again unless `keep`."""
    packet = Ether(frame)
    change(packet)
    if not keep:
        packet[IP].delfieldval("chksum")
    return bytes(packet)


# -- Not this rank, not here ---------------------------------------------------------------------


def test_another_port(bed: Testbed, job: Job) -> None:
    """Nobody speaks for a rank from another port."""
    for port in PORTS:
        if port != job.ranks[1].port:
            bed.expect([(port, job.frame(1, constant(9)))], {}, FrameOutcome.NOT_ADMITTED)
    refuse(bed, job, (job.ranks[0].port, job.frame(1, constant(9))), FrameOutcome.NOT_ADMITTED)


def test_another_address(bed: Testbed, job: Job) -> None:
    port, frame = job.send(1, constant(9))
    frame = changed(frame, lambda packet: packet[IP].setfieldval("src", "10.77.0.77"))
    refuse(bed, job, (port, frame), FrameOutcome.NOT_ADMITTED)


def test_another_job(bed: Testbed, job: Job) -> None:
    refuse(bed, job, job.send(1, constant(9), job=0xDEAD), FrameOutcome.NOT_ADMITTED)


@pytest.mark.parametrize("claimed", [0, 2, 63, 64, 0xFFFF])
def test_another_rank(bed: Testbed, job: Job, claimed: int) -> None:
    port, _ = job.send(1)
    refuse(bed, job, (port, job.frame(1, constant(9), rank=claimed)), FrameOutcome.NOT_ADMITTED)


@pytest.mark.parametrize("beyond", [0, 1, 1021, 0xFFFF - 2])
def test_slot_out_of_range(bed: Testbed, job: Job, beyond: int) -> None:
    refuse(
        bed, job, job.send(1, constant(9), slot=job.slots + beyond), FrameOutcome.SLOT_OUT_OF_RANGE
    )


def test_slot_of_the_job_next_to_it(bed: Testbed, jobs: Jobs) -> None:
    """A slot number beyond the range would be the neighbour's first."""
    mine, theirs = jobs(2), jobs(2)
    if theirs.base != mine.base + mine.slots:
        mine, theirs = jobs(2), jobs(2)  # the first pair lay across the last slot
    assert theirs.base == mine.base + mine.slots
    bed.expect([theirs.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    bed.expect([mine.send(0, constant(9), slot=mine.slots)], {}, FrameOutcome.SLOT_OUT_OF_RANGE)
    last = theirs.send(1, constant(2))
    bed.expect([last], theirs.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_after_the_job_was_deleted(bed: Testbed, jobs: Jobs, job: Job) -> None:
    other = jobs(2)
    row = other.admission(other.ranks[0])
    bed.expect([other.send(0)], {}, FrameOutcome.ROUND_OPENED)
    bed.remove([row])
    jobs.forget([row])
    refuse(bed, job, other.send(0), FrameOutcome.NOT_ADMITTED)


# -- What it says of itself ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, wire.AGGREGATION_VERSION + 1, 15])
def test_version(bed: Testbed, job: Job, version: int) -> None:
    refuse(bed, job, job.send(1, constant(9), version=version), FrameOutcome.BAD_VERSION)


@pytest.mark.parametrize("kind", [3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15])
def test_kind(bed: Testbed, job: Job, kind: int) -> None:
    refuse(bed, job, job.send(1, constant(9), kind=kind), FrameOutcome.UNKNOWN_KIND)


@pytest.mark.parametrize("kind", [1, 2], ids=["result", "status"])
def test_only_a_parent_may_answer(bed: Testbed, job: Job, kind: int) -> None:
    """RESULT and STATUS come from a switch, and no rank may send them into one."""
    bed.expect([job.send(1, kind=kind)], {}, FrameOutcome.NOT_FROM_PARENT)
    # With lanes, which a STATUS never has.
    outcome = FrameOutcome.NOT_FROM_PARENT if kind == 1 else FrameOutcome.MALFORMED
    refuse(bed, job, job.send(1, constant(9), kind=kind), outcome)


@pytest.mark.parametrize("lane_format", [5, 6, 128, 255])
def test_format(bed: Testbed, job: Job, lane_format: int) -> None:
    refuse(bed, job, job.send(1, constant(9), format=lane_format), FrameOutcome.UNKNOWN_FORMAT)


# -- Lengths -------------------------------------------------------------------------------------

empty_or_not = pytest.mark.parametrize("lanes", [None, 9], ids=["empty", "payload"])


def block(value: int | None) -> Any:
    return None if value is None else constant(value)


@empty_or_not
@pytest.mark.parametrize("by", [-1, 1, -20, 1024, -1024])
def test_ipv4_length(bed: Testbed, job: Job, lanes: int | None, by: int) -> None:
    port, frame = job.send(1, block(lanes))
    wrong = (Ether(frame)[IP].len + by) & 0xFFFF
    frame = changed(frame, lambda packet: packet[IP].setfieldval("len", wrong))
    refuse(bed, job, (port, frame), FrameOutcome.MALFORMED)


@empty_or_not
@pytest.mark.parametrize("by", [-1, 1, -8, 1024, -1024])
def test_udp_length(bed: Testbed, job: Job, lanes: int | None, by: int) -> None:
    port, frame = job.send(1, block(lanes))
    wrong = (Ether(frame)[UDP].len + by) & 0xFFFF
    frame = changed(frame, lambda packet: packet[UDP].setfieldval("len", wrong))
    refuse(bed, job, (port, frame), FrameOutcome.MALFORMED)


@empty_or_not
@pytest.mark.parametrize("by", [-1, 1, 20])
def test_lengths_that_agree_on_a_wrong_one(
    bed: Testbed, job: Job, lanes: int | None, by: int
) -> None:
    """Both IPv4 and UDP, but not the frame; then the frame as well."""
    port, frame = job.send(1, block(lanes))

    def both(packet: Packet) -> None:
        packet[IP].len += by
        packet[UDP].len += by

    frame = changed(frame, both)
    bed.expect([(port, frame)], {}, FrameOutcome.MALFORMED)
    frame = frame[:by] if by < 0 else frame + bytes(by)
    refuse(bed, job, (port, frame), FrameOutcome.MALFORMED)


@empty_or_not
@pytest.mark.parametrize("more", [1, 4, 46, 300])
def test_trailing_bytes(bed: Testbed, job: Job, lanes: int | None, more: int) -> None:
    """Nobody has looked at them, so they must not travel on in the answers."""
    port, frame = job.send(1, block(lanes))
    refuse(bed, job, (port, frame + b"\xee" * more), FrameOutcome.MALFORMED)


def test_lanes_without_the_flag(bed: Testbed, job: Job) -> None:
    """1,024 bytes that neither PAYLOAD nor PADDED announces."""
    port, frame = job.send(1, constant(9), flags=0)
    frame = changed(frame, lambda packet: packet[Aggregation].setfieldval("flags", 0))
    assert len(frame) == wire.PAYLOAD_FRAME_BYTES
    refuse(bed, job, (port, frame), FrameOutcome.MALFORMED)


@pytest.mark.parametrize("flag", [Flag.PAYLOAD, Flag.PADDED])
def test_the_flag_without_lanes(bed: Testbed, job: Job, flag: Flag) -> None:
    port, frame = job.send(1)
    frame = changed(frame, lambda packet: packet[Aggregation].setfieldval("flags", flag))
    assert len(frame) == wire.EMPTY_FRAME_BYTES
    refuse(bed, job, (port, frame), FrameOutcome.MALFORMED)


@pytest.mark.parametrize("lanes", [4, 252, 255])
def test_a_shorter_block(bed: Testbed, job: Job, lanes: int) -> None:
    """All lengths agree, but a block has 1,024 bytes."""
    port, frame = job.send(1, constant(9))

    def shorten(packet: Packet) -> None:
        packet[Aggregation].remove_payload()
        packet[Aggregation].add_payload(Raw(bytes(4 * lanes)))
        packet[IP].delfieldval("len")
        packet[UDP].delfieldval("len")

    refuse(bed, job, (port, changed(frame, shorten)), FrameOutcome.MALFORMED)


# -- Truncated: at each header's border, and within ----------------------------------------------

ETHERNET_END, IPV4_END = wire.ETHERNET_BYTES, wire.ETHERNET_BYTES + wire.IPV4_BYTES
UDP_END, AGG_END = wire.AGG_OFFSET, wire.PAYLOAD_OFFSET
WORD = 256


@pytest.mark.parametrize("length", [ETHERNET_END, ETHERNET_END + 1, IPV4_END - 1])
def test_truncated_in_ipv4(bed: Testbed, job: Job, length: int) -> None:
    """Nothing says that it is for the switch, so it is anybody's, as for any bridge."""
    port, frame = job.send(1, constant(9))
    cut = frame[:length]
    others = {other: [cut] for other in PORTS if other != port}
    bed.expect([(port, cut)], others, FrameOutcome.L2_FLOODED)


@pytest.mark.parametrize("length", [IPV4_END, IPV4_END + 1, UDP_END - 1])
def test_truncated_in_udp(bed: Testbed, job: Job, length: int) -> None:
    port, frame = job.send(1, constant(9))
    refuse(bed, job, (port, frame[:length]), FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize(
    "length",
    [UDP_END, UDP_END + 1, UDP_END + 8, AGG_END - 1, AGG_END, AGG_END + 1]
    + [AGG_END + WORD * n + offset for n in (1, 2, 3) for offset in (-1, 0, 1)]
    + [AGG_END + 4 * WORD - 1],
)
def test_truncated_in_the_header_or_the_block(bed: Testbed, job: Job, length: int) -> None:
    port, frame = job.send(1, constant(9))
    refuse(bed, job, (port, frame[:length]), FrameOutcome.MALFORMED)


# -- IPv4 ----------------------------------------------------------------------------------------


@empty_or_not
@pytest.mark.parametrize("by", [1, 0x0100, 0x8000, 0xFFFF])
def test_ipv4_checksum(bed: Testbed, job: Job, lanes: int | None, by: int) -> None:
    port, frame = job.send(1, block(lanes))
    wrong = Ether(frame)[IP].chksum ^ by
    frame = changed(frame, lambda packet: packet[IP].setfieldval("chksum", wrong), keep=True)
    refuse(bed, job, (port, frame), FrameOutcome.BAD_IPV4_CHECKSUM)


@pytest.mark.parametrize(("flags", "offset"), [("MF", 0), (0, 1), ("MF", 185), ("DF", 1)])
def test_fragments(bed: Testbed, job: Job, flags: str | int, offset: int) -> None:
    """Not looked into, whatever they hold: a later one only looks as if it had a header."""
    port, frame = job.send(1, constant(9))

    def fragment(packet: Packet) -> None:
        packet[IP].flags, packet[IP].frag = flags, offset

    refuse(bed, job, (port, changed(frame, fragment)), FrameOutcome.HOST_UNHANDLED)


def test_ipv4_options(bed: Testbed, job: Job) -> None:
    port, frame = job.send(1, constant(9))
    packet = Ether(frame)
    body, ip = bytes(packet[UDP]), packet[IP]
    header = IP(src=ip.src, dst=ip.dst, proto=ip.proto, options=[IPOption_NOP()] * 4)
    frame = bytes(Ether(src=packet.src, dst=packet.dst, type=0x0800) / header / Raw(body))
    assert frame[14] == 0x46
    refuse(bed, job, (port, frame), FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize("ihl", [0, 1, 4, 6, 15])
def test_header_length_that_lies(bed: Testbed, job: Job, ihl: int) -> None:
    port, frame = job.send(1, constant(9))
    frame = changed(frame, lambda packet: packet[IP].setfieldval("ihl", ihl))
    refuse(bed, job, (port, frame), FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize("version", [0, 5, 6, 15])
def test_ip_version(bed: Testbed, job: Job, version: int) -> None:
    """Under IPv4's ethertype."""
    port, frame = job.send(1, constant(9))
    frame = changed(frame, lambda packet: packet[IP].setfieldval("version", version))
    refuse(bed, job, (port, frame), FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize("protocol", [0, 1, 6, 50, 255])
def test_protocol(bed: Testbed, job: Job, protocol: int) -> None:
    """Not UDP. (An ICMP message of type 0xC0, the first byte of the source port, means nothing.)"""
    port, frame = job.send(1, constant(9))
    frame = changed(frame, lambda packet: packet[IP].setfieldval("proto", protocol))
    refuse(bed, job, (port, frame), FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize("destination", [0, 53, wire.AGGREGATION_PORT - 1, 0xE0BE])
def test_udp_port(bed: Testbed, job: Job, destination: int) -> None:
    port, frame = job.send(1, constant(9))
    frame = frame[:36] + destination.to_bytes(2, "big") + frame[38:]
    refuse(bed, job, (port, frame), FrameOutcome.HOST_UNHANDLED)


def test_another_host(bed: Testbed, job: Job) -> None:
    """A contribution to somebody else is that one's business: bridged, untouched."""
    port, frame = job.send(1, constant(9))
    frame = changed(frame, lambda packet: packet[IP].setfieldval("dst", "10.77.255.253"))
    others = {other: [frame] for other in PORTS if other != port}
    bed.expect([(port, frame)], others, FrameOutcome.L2_FLOODED)
    refuse(bed, job, job.send(1, version=9), FrameOutcome.BAD_VERSION)


# -- What is admitted ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["tos", "id", "ttl"])
def test_what_does_not_matter(bed: Testbed, job: Job, field: str) -> None:
    """Routers and operating systems set these as they like; all but the TTL come back."""
    port, frame = job.send(1, constant(2))
    last = (port, changed(frame, lambda packet: packet[IP].setfieldval(field, 1)))
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_udp_checksum_is_not_looked_at(bed: Testbed, job: Job) -> None:
    """Docs: none is used; whoever sends one all the same gets an answer without."""
    port, frame = job.send(1, constant(2))
    last = (port, frame[:40] + b"\x12\x34" + frame[42:])
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_what_each_rank_sent_is_counted(bed: Testbed, jobs: Jobs) -> None:
    """Frames and bytes, of the ranks that they are from, whatever became of them."""
    job = jobs(2)
    sent = [
        job.send(0, constant(1)),
        job.send(0),
        job.send(0, slot=job.slots),
        job.send(1, round=2),
        job.send(1, constant(1), round=0),
    ]
    bed.exchange(sent)
    bed.exchange([job.send(1, constant(1), job=0xDEAD), job.send(1, constant(1), kind=7)])
    bare, whole = wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES
    for rank, (frames, size) in enumerate([(3, whole + 2 * bare), (2, bare + whole)]):
        source = parse_ip(job.ranks[rank].at.ip)
        counts = bed.counts("admission", job=job.id, rank=rank, src_ip=source)
        assert (counts.frames, counts.bytes) == (frames, size)


def test_own_address_is_the_switch_only(bed: Testbed) -> None:
    """What the other tests rely on."""
    rows = bed.client.read_table("own_address")
    assert [row.match["ip"] for row in rows] == [parse_ip(SWITCH.ip)]
