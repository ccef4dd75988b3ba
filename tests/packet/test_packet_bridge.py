# SPDX-License-Identifier: Apache-2.0
"""The switch as a switch: what is for others continues as it came."""

from __future__ import annotations

import pytest
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.schema import Op, Update
from packet_testbed import (
    BROADCAST,
    EXPERIMENTAL,
    KNOWN,
    KNOWN_PORT,
    PORTS,
    STRANGER,
    Testbed,
    every_port,
    flooded,
    station,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

SOURCE = "02:00:00:00:aa:01"


def frame_to(mac: str, data: bytes = b"hello") -> bytes:
    return bytes(Ether(src=SOURCE, dst=mac, type=EXPERIMENTAL) / Raw(data))


@every_port
@pytest.mark.parametrize("mac", [BROADCAST, "01:00:5e:00:00:fb", "33:33:00:00:00:01", STRANGER])
def test_flood(bed: Testbed, port: int, mac: str) -> None:
    """To every port but the one that it came from."""
    frame = frame_to(mac)
    bed.expect([(port, frame)], flooded(frame, port), FrameOutcome.L2_FLOODED)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("port", [port for port in PORTS if port != KNOWN_PORT])
def test_forward(bed: Testbed, port: int) -> None:
    frame = frame_to(KNOWN)
    bed.expect([(port, frame)], {KNOWN_PORT: [frame]}, FrameOutcome.L2_FORWARDED)


@pytest.mark.usefixtures("known")
def test_hairpin(bed: Testbed) -> None:
    """The station is where the frame came from, and so has it already."""
    bed.expect([(KNOWN_PORT, frame_to(KNOWN))], {}, FrameOutcome.L2_HAIRPIN)


@pytest.mark.usefixtures("known")
def test_moved_station(bed: Testbed) -> None:
    bed.client.write([Update(Op.MODIFY, station(KNOWN, 4))])
    frame = frame_to(KNOWN)
    bed.expect([(1, frame)], {4: [frame]}, FrameOutcome.L2_FORWARDED)
    bed.expect([(KNOWN_PORT, frame)], {4: [frame]}, FrameOutcome.L2_FORWARDED)


def test_forgotten_station(bed: Testbed) -> None:
    row = station(KNOWN, 2)
    frame = frame_to(KNOWN)
    bed.insert([row])
    bed.expect([(1, frame)], {2: [frame]}, FrameOutcome.L2_FORWARDED)
    bed.remove([row])
    bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


OTHERS: dict[str, Packet] = {
    "ipv4": IP(src="10.0.0.1", dst="10.0.0.2", ttl=1) / UDP(dport=53) / Raw(b"data"),
    "ipv4-wrong-checksum": IP(src="10.0.0.1", dst="10.0.0.2", chksum=0xBAD) / Raw(b"data"),
    "ipv4-to-our-port": IP(dst="10.0.0.2") / UDP(dport=0xBEE0) / Raw(b"\xff" * 200),
    "ipv4-fragment": IP(dst="10.0.0.2", flags="MF", frag=10) / Raw(b"data"),
    "ipv6": IPv6(src="fe80::1", dst="fe80::2") / UDP(dport=0xBEE0) / Raw(b"data"),
    "vlan": Dot1Q(vlan=7) / IP(dst="10.77.255.254") / UDP(dport=0xBEE0) / Raw(b"data"),
    "full": IP(dst="10.0.0.2") / UDP() / Raw(bytes(range(256)) * 5 + bytes(192)),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", OTHERS)
def test_all_goes_on_as_it_came(bed: Testbed, name: str) -> None:
    """Nothing is repaired, dropped or looked into, TTL and checksums included."""
    frame = bytes(Ether(src=SOURCE, dst=KNOWN) / OTHERS[name])
    bed.expect([(1, frame)], {KNOWN_PORT: [frame]}, FrameOutcome.L2_FORWARDED)
    frame = bytes(Ether(src=SOURCE, dst=STRANGER) / OTHERS[name])
    bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


@pytest.mark.parametrize("size", [14, 15, 59, 60, 61, 590, 1102, 1514])
def test_sizes(bed: Testbed, size: int) -> None:
    frame = frame_to(STRANGER, bytes(size - 14))
    assert len(frame) == size
    bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


@pytest.mark.usefixtures("known")
def test_order_is_kept(bed: Testbed) -> None:
    """From one port to another."""
    frames = [frame_to(KNOWN, bytes([n])) for n in range(30)]
    seen = bed.exchange([(1, frame) for frame in frames])
    assert seen.received[KNOWN_PORT] == frames
