# SPDX-License-Identifier: Apache-2.0
"""Frames between the switch and the controller: HELLO up, anything down."""

from __future__ import annotations

from typing import Any

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Jobs, constant
from packet_testbed import EXPERIMENTAL, PORTS, SWITCH, Testbed, expect
from scapy.layers.l2 import Ether
from scapy.packet import Raw

NEWCOMER = wire.Endpoint("02:00:00:00:bb:01", "10.77.9.9", 51000)

every_port = pytest.mark.parametrize("port", PORTS)


def hello(**fields: Any) -> bytes:
    header = Aggregation(kind=FrameKind.HELLO, job=77, rank=3, contributors=0x1122334455667788)
    payload = fields.pop("payload", b"")
    for name, value in fields.items():
        header.setfieldval(name, value)
    return wire.template(NEWCOMER, SWITCH, header, payload)


@every_port
def test_hello(bed: Testbed, port: int) -> None:
    """As it came, with the port that it came by, from anybody: who it is is what it is about."""
    bed.expect([(port, hello())], {}, FrameOutcome.HELLO_PUNTED, packet_ins=[(port, hello())])
    said = wire.parse_hello(hello())
    assert (said.job, said.rank, said.nonce) == (77, 3, 0x1122334455667788)


def test_hellos_of_all_ports(bed: Testbed) -> None:
    seen = bed.exchange([(port, hello(rank=port)) for port in PORTS])
    assert seen.frames == []
    assert seen.outcomes == {FrameOutcome.HELLO_PUNTED: len(PORTS)}
    told = sorted((one.port, wire.parse_hello(one.frame).rank) for one in seen.packet_ins)
    assert told == [(port, port) for port in PORTS]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [({"version": 15}, FrameOutcome.BAD_VERSION), ({"flags": 1}, FrameOutcome.MALFORMED)],
    ids=str,
)
def test_wrong_hello(bed: Testbed, fields: dict[str, Any], outcome: FrameOutcome) -> None:
    bed.expect([(1, hello(**fields))], {}, outcome)


def test_hello_with_trailing_bytes(bed: Testbed) -> None:
    bed.expect([(1, hello() + b"\0")], {}, FrameOutcome.MALFORMED)


def test_hello_with_payload(bed: Testbed) -> None:
    """Passed on: what a HELLO may hold is the controller's business, which refuses it."""
    frame = hello(flags=Flag.PAYLOAD, payload=bytes(1024))
    bed.expect([(1, frame)], {}, FrameOutcome.HELLO_PUNTED, packet_ins=[(1, frame)])
    with pytest.raises(ValueError, match=f"{wire.EMPTY_FRAME_BYTES} bytes"):
        wire.parse_hello(frame)


def test_hello_disturbs_nobody(bed: Testbed, jobs: Jobs) -> None:
    """In the middle of another job's round, and naming it."""
    job = jobs(2)
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    frame = hello(job=job.id, rank=1)
    bed.expect([(2, frame)], {}, FrameOutcome.HELLO_PUNTED, packet_ins=[(2, frame)])
    last = job.send(1, constant(2))
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


# -- Down ----------------------------------------------------------------------------------------


@every_port
@pytest.mark.parametrize("size", [14, 60, 1102, 1514])
def test_packet_out(bed: Testbed, port: int, size: int) -> None:
    frame = bytes(
        Ether(dst=NEWCOMER.mac, src=SWITCH.mac, type=EXPERIMENTAL) / Raw(bytes(size - 14))
    )
    seen = bed.inject([(port, frame)])
    expect(seen, {port: [frame]}, {FrameOutcome.PACKET_OUT_SENT: 1})


def test_packet_outs_of_aggregation_frames(bed: Testbed, jobs: Jobs) -> None:
    """They go where the controller says, as they are, and count for no round."""
    job = jobs(2)
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    frame = job.frame(1, constant(9))
    seen = bed.inject([(2, frame), (3, hello())])
    expect(seen, {2: [frame], 3: [hello()]}, {FrameOutcome.PACKET_OUT_SENT: 2})
    last = job.send(1, constant(2))
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


def test_packet_out_to_nowhere(bed: Testbed) -> None:
    """A port that the switch does not have, and v1model's for drops."""
    seen = bed.inject([(9, hello()), (511, hello())])
    expect(seen, {}, {FrameOutcome.PACKET_OUT_SENT: 2})
