# SPDX-License-Identifier: Apache-2.0
"""The switch as a host: ARP and ping for its own address."""

from __future__ import annotations

import pytest
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_testbed import BROADCAST, PORTS, SWITCH, Testbed
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import checksum

HOST_MAC, HOST_IP = "02:00:00:00:00:07", "10.77.0.7"
STRANGER = "10.77.0.99"

every_port = pytest.mark.parametrize("port", PORTS)


def ping(data: bytes = b"p4reduce", **fields: object) -> Packet:
    icmp = ICMP(type=8, id=0x1234, seq=1)
    frame = Ether(src=HOST_MAC, dst=SWITCH.mac) / IP(src=HOST_IP, dst=SWITCH.ip) / icmp / Raw(data)
    for name, value in fields.items():
        frame[IP].setfieldval(name, value)
    return frame


def pong(sent: bytes) -> bytes:
    """The reply to an echo request: the same, turned round."""
    packet = Ether(sent)
    packet.src, packet.dst = SWITCH.mac, packet.src
    ip = packet[IP]
    ip.src, ip.dst, ip.ttl = SWITCH.ip, ip.src, 64
    del ip.chksum
    packet[ICMP].type = 0
    del packet[ICMP].chksum
    return bytes(packet)


def arp_request(target: str, **fields: object) -> bytes:
    request = ARP(op=1, hwsrc=HOST_MAC, psrc=HOST_IP, hwdst="00:00:00:00:00:00", pdst=target)
    for name, value in fields.items():
        request.setfieldval(name, value)
    return bytes(Ether(src=HOST_MAC, dst=BROADCAST) / request)


def flooded(frame: bytes, port: int) -> dict[int, list[bytes]]:
    return {other: [frame] for other in PORTS if other != port}


# -- ARP -----------------------------------------------------------------------------------------


@every_port
@pytest.mark.parametrize("destination", [BROADCAST, SWITCH.mac])
def test_arp_for_the_switch(bed: Testbed, port: int, destination: str) -> None:
    request = arp_request(SWITCH.ip)
    request = bytes.fromhex(destination.replace(":", "")) + request[6:]
    reply = ARP(op=2, hwsrc=SWITCH.mac, psrc=SWITCH.ip, hwdst=HOST_MAC, pdst=HOST_IP)
    frame = bytes(Ether(src=SWITCH.mac, dst=HOST_MAC) / reply)
    bed.expect([(port, request)], {port: [frame]}, FrameOutcome.ARP_REPLIED)


def test_arp_with_ethernet_padding(bed: Testbed) -> None:
    """Frames have 60 bytes at least on real links."""
    request = arp_request(SWITCH.ip).ljust(60, b"\0")
    reply = ARP(op=2, hwsrc=SWITCH.mac, psrc=SWITCH.ip, hwdst=HOST_MAC, pdst=HOST_IP)
    frame = bytes(Ether(src=SWITCH.mac, dst=HOST_MAC) / reply).ljust(60, b"\0")
    bed.expect([(1, request)], {1: [frame]}, FrameOutcome.ARP_REPLIED)


def test_arp_for_others_is_bridged(bed: Testbed) -> None:
    frame = arp_request(STRANGER)
    bed.expect([(2, frame)], flooded(frame, 2), FrameOutcome.L2_FLOODED)


@pytest.mark.parametrize("operation", [0, 2, 3, 256])
def test_arp_that_is_no_request(bed: Testbed, operation: int) -> None:
    frame = arp_request(SWITCH.ip, op=operation)
    bed.expect([(1, frame)], {}, FrameOutcome.HOST_UNHANDLED)


def test_arp_cut_short_is_bridged(bed: Testbed) -> None:
    for length in (14, 15, 41):
        frame = arp_request(SWITCH.ip)[:length]
        bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


@pytest.mark.parametrize(
    ("field", "value"), [("hwtype", 6), ("ptype", 0x86DD), ("hwlen", 8), ("plen", 16)]
)
def test_arp_of_other_networks(bed: Testbed, field: str, value: int) -> None:
    """Only with Ethernet and IPv4 are the addresses where the switch would look for its own and
    put the reply's (RFC 826); all others are bridged."""
    request = ARP(op=1, hwsrc=HOST_MAC, psrc=HOST_IP, hwdst=BROADCAST, pdst=SWITCH.ip)
    body = bytearray(bytes(request))
    offset, size = {"hwtype": (0, 2), "ptype": (2, 2), "hwlen": (4, 1), "plen": (5, 1)}[field]
    body[offset : offset + size] = value.to_bytes(size, "big")
    frame = bytes(Ether(src=HOST_MAC, dst=BROADCAST, type=0x0806)) + bytes(body)
    bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


# -- Ping ----------------------------------------------------------------------------------------


@every_port
def test_ping(bed: Testbed, port: int) -> None:
    request = bytes(ping())
    bed.expect([(port, request)], {port: [pong(request)]}, FrameOutcome.ECHO_REPLIED)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 17, 18, 56, 511, 1023, 1472])
def test_ping_of_any_size(bed: Testbed, size: int) -> None:
    """Odd ones too."""
    request = bytes(ping(bytes(7 * n & 0xFF for n in range(size))))
    bed.expect([(1, request)], {1: [pong(request)]}, FrameOutcome.ECHO_REPLIED)


@pytest.mark.parametrize("ttl", [0, 1, 63, 64, 255])
def test_ping_at_any_ttl(bed: Testbed, ttl: int) -> None:
    request = bytes(ping(ttl=ttl))
    bed.expect([(1, request)], {1: [pong(request)]}, FrameOutcome.ECHO_REPLIED)


def test_ping_with_ethernet_padding(bed: Testbed) -> None:
    request = bytes(ping(b"x"))
    reply = pong(request)
    assert len(request) < 60
    sent = [(1, request.ljust(60, b"\0"))]
    bed.expect(sent, {1: [reply.ljust(60, b"\0")]}, FrameOutcome.ECHO_REPLIED)


@pytest.mark.parametrize("wanted", [0x0000, 0x0001, 0xF7FE, 0xF7FF, 0xF800, 0xFFFE, 0xFFFF])
def test_checksum_carries(bed: Testbed, wanted: int) -> None:
    """Requests whose checksum is at the ends of the range. (0xF7FF becomes 0xFFFF, which is
    the other of one's complement's zeroes: as good a checksum as 0.)"""
    # The two bytes of data that make the checksum what is wanted.
    body = checksum(bytes(ICMP(type=8, id=0x1234, seq=1, chksum=0)))
    data = ((~wanted & 0xFFFF) - (~body & 0xFFFF)) % 0xFFFF
    request = ping(data.to_bytes(2, "big"))
    request[ICMP].chksum = wanted
    sent = bytes(request)
    assert checksum(sent[34:]) in (0, 0xFFFF), "the request itself is wrong"
    seen = bed.exchange([(1, sent)])
    (reply,) = seen.received[1]
    assert checksum(reply[34:]) in (0, 0xFFFF), "the reply's checksum is wrong"
    assert reply[:36] + reply[38:] == pong(sent)[:36] + pong(sent)[38:]
    assert seen.outcomes == {FrameOutcome.ECHO_REPLIED: 1}


def test_wrong_icmp_checksum_stays_wrong(bed: Testbed) -> None:
    """It is updated, not computed: what was damaged on the way is not made good."""
    request = ping()
    request[ICMP].chksum = 0x1234
    sent = bytes(request)
    seen = bed.exchange([(1, sent)])
    (reply,) = seen.received[1]
    assert checksum(reply[34:]) not in (0, 0xFFFF)


@pytest.mark.parametrize(("kind", "code"), [(0, 0), (3, 3), (8, 1), (11, 0), (13, 0), (255, 0)])
def test_other_icmp(bed: Testbed, kind: int, code: int) -> None:
    frame = ping()
    frame[ICMP].type, frame[ICMP].code = kind, code
    bed.expect([(1, bytes(frame))], {}, FrameOutcome.HOST_UNHANDLED)


@pytest.mark.parametrize("length", [34, 35, 37])
def test_icmp_cut_short(bed: Testbed, length: int) -> None:
    bed.expect([(1, bytes(ping())[:length])], {}, FrameOutcome.HOST_UNHANDLED)


def test_fragments_of_a_ping(bed: Testbed) -> None:
    for flags, offset in (("MF", 0), (0, 2)):
        frame = bytes(ping(flags=flags, frag=offset))
        bed.expect([(1, frame)], {}, FrameOutcome.HOST_UNHANDLED)


def test_ping_with_a_wrong_ipv4_checksum(bed: Testbed) -> None:
    frame = bytearray(bytes(ping()))
    frame[24] ^= 1
    bed.expect([(1, bytes(frame))], {}, FrameOutcome.BAD_IPV4_CHECKSUM)


def test_ping_to_others_is_bridged(bed: Testbed) -> None:
    frame = bytes(ping(dst=STRANGER))
    bed.expect([(1, frame)], flooded(frame, 1), FrameOutcome.L2_FLOODED)


# -- Anything else -------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [UDP(dport=53), UDP(dport=9559), TCP(dport=22)], ids=repr)
def test_other_traffic_to_the_switch(bed: Testbed, transport: Packet) -> None:
    ip = IP(src=HOST_IP, dst=SWITCH.ip)
    frame = bytes(Ether(src=HOST_MAC, dst=SWITCH.mac) / ip / transport / Raw(b"data"))
    bed.expect([(1, frame)], {}, FrameOutcome.HOST_UNHANDLED)
