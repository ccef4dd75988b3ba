# SPDX-License-Identifier: Apache-2.0
"""Who says that he is the switch: frames with its addresses come out of it, and never go in."""

from __future__ import annotations

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from packet_jobs import Jobs, constant, encode
from packet_testbed import (
    BROADCAST,
    EXPERIMENTAL,
    KNOWN,
    KNOWN_PORT,
    PORTS,
    STRANGER,
    SWITCH,
    Testbed,
    every_port,
    expect,
    flooded,
)
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

pytestmark = pytest.mark.usefixtures("known")

INTRUDER = wire.Endpoint("02:00:00:00:dd:01", "10.77.0.66", wire.AGGREGATION_PORT)
INTRUDERS_PORT = 1
HOST = "10.77.0.9"

everywhere = pytest.mark.parametrize("dst", [KNOWN, STRANGER, BROADCAST])


def bridged(frame: bytes, port: int = INTRUDERS_PORT) -> dict[int, list[bytes]]:
    if Ether(frame).dst == KNOWN:
        return {KNOWN_PORT: [frame]}
    return flooded(frame, port)


def dropped(bed: Testbed, frame: bytes, port: int = INTRUDERS_PORT) -> None:
    bed.expect([(port, frame)], {}, FrameOutcome.FORGED_SOURCE)


def passed(bed: Testbed, frame: bytes, port: int = INTRUDERS_PORT) -> None:
    outcome = FrameOutcome.L2_FORWARDED if Ether(frame).dst == KNOWN else FrameOutcome.L2_FLOODED
    bed.expect([(port, frame)], bridged(frame, port), outcome)


# -- By Ethernet: whatever is in it ----------------------------------------------------------------

ANSWER = IP(src=SWITCH.ip, dst=HOST) / UDP(sport=SWITCH.udp_port, dport=49152) / Raw(bytes(36))
CONTENTS: dict[str, Packet] = {
    "raw": Raw(b"hello"),
    "answer": ANSWER,
    "ipv4": IP(src=INTRUDER.ip, dst=HOST) / UDP(dport=53) / Raw(b"data"),
    "fragment": IP(src=INTRUDER.ip, dst=HOST, flags="MF") / Raw(bytes(48)),
    "ipv6": IPv6(src="fe80::1", dst="fe80::2") / UDP(dport=0xBEE0) / Raw(b"data"),
    "arp": ARP(op=2, hwsrc=INTRUDER.mac, psrc=INTRUDER.ip, pdst=HOST),
    "vlan": Dot1Q(vlan=7) / ANSWER,
    # The kernel takes a tag of VLAN 0 off, so that a socket has the frame as if without.
    "priority": Dot1Q(vlan=0, prio=5) / ANSWER,
    "two-tags": Dot1AD(vlan=0) / Dot1Q(vlan=0) / ANSWER,
}


@everywhere
@pytest.mark.parametrize("name", CONTENTS)
def test_the_switchs_mac(bed: Testbed, name: str, dst: str) -> None:
    dropped(bed, bytes(Ether(src=SWITCH.mac, dst=dst) / CONTENTS[name]))


@every_port
def test_at_every_port(bed: Testbed, port: int) -> None:
    dropped(bed, bytes(Ether(src=SWITCH.mac, dst=STRANGER, type=EXPERIMENTAL)), port)


def test_a_neighbours_mac_passes(bed: Testbed) -> None:
    """All six bytes are compared."""
    for byte in range(6):
        mac = bytearray.fromhex(SWITCH.mac.replace(":", ""))
        mac[byte] ^= 4
        passed(bed, bytes(Ether(src=mac.hex(":"), dst=STRANGER) / CONTENTS["ipv4"]))


# -- By IPv4 ---------------------------------------------------------------------------------------

BODIES: dict[str, Packet] = {
    "udp": IP() / UDP(sport=SWITCH.udp_port, dport=49152) / Raw(bytes(36)),
    "tcp": IP() / TCP(),
    "echo": IP() / ICMP(type=8),
    "options": IP(options=[b"\x94\x04\x00\x00"]) / UDP(),
    "first-fragment": IP(flags="MF") / UDP() / Raw(bytes(40)),
    "later-fragment": IP(frag=10) / Raw(bytes(40)),
    "wrong-checksum": IP(chksum=0xBAD) / UDP(),
    "header-alone": IP(),
}


@everywhere
@pytest.mark.parametrize("name", BODIES)
def test_the_switchs_ip(bed: Testbed, name: str, dst: str) -> None:
    packet = Ether(src=INTRUDER.mac, dst=dst) / BODIES[name]
    packet[IP].src, packet[IP].dst = SWITCH.ip, HOST
    dropped(bed, bytes(packet))
    # It is the address that matters, and nothing else in the frame.
    packet[IP].src = INTRUDER.ip
    passed(bed, bytes(packet))


# -- By ARP ----------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("operation", [1, 2])
@pytest.mark.parametrize("claim", [{"psrc": SWITCH.ip}, {"hwsrc": SWITCH.mac}], ids=["ip", "mac"])
def test_arp(bed: Testbed, operation: int, claim: dict[str, str], dst: str) -> None:
    fields = {"hwsrc": INTRUDER.mac, "psrc": INTRUDER.ip, "hwdst": KNOWN, "pdst": HOST}
    ethernet = Ether(src=INTRUDER.mac, dst=dst)
    dropped(bed, bytes(ethernet / ARP(op=operation, **{**fields, **claim})))
    passed(bed, bytes(ethernet / ARP(op=operation, **fields)))


def test_arp_that_announces_itself(bed: Testbed) -> None:
    """For the switch's address as well: it is not bridged either."""
    body = ARP(op=2, hwsrc=INTRUDER.mac, psrc=SWITCH.ip, pdst=SWITCH.ip)
    frame = bytes(Ether(src=INTRUDER.mac, dst=BROADCAST) / body)
    bed.expect([(INTRUDERS_PORT, frame)], {}, FrameOutcome.HOST_UNHANDLED)


def test_arp_of_other_networks(bed: Testbed) -> None:
    """The same bytes are no addresses there."""
    body = bytearray(bytes(ARP(op=2, hwsrc=SWITCH.mac, psrc=SWITCH.ip, pdst=HOST)))
    body[4] = 8  # bytes of a hardware address
    passed(bed, bytes(Ether(src=INTRUDER.mac, dst=STRANGER, type=0x0806)) + bytes(body))


# -- Sums ------------------------------------------------------------------------------------------


def test_answers_to_a_rank(bed: Testbed, jobs: Jobs) -> None:
    """Not from the switch's addresses, whichever of them; and the round continues as it would."""
    job = jobs(2)
    victim = job.ranks[1].at
    header = Aggregation(
        kind=FrameKind.RESULT, flags=Flag.PAYLOAD, rank=1, job=job.id, contributors=job.everyone
    )
    payload = encode(constant(1337))
    bed.expect([job.send(0, constant(1))], {}, FrameOutcome.ROUND_OPENED)
    for kind in (FrameKind.RESULT, FrameKind.STATUS):
        header.kind = kind
        for mac, ip in (
            (SWITCH.mac, SWITCH.ip),
            (SWITCH.mac, INTRUDER.ip),
            (INTRUDER.mac, SWITCH.ip),
        ):
            forger = wire.Endpoint(mac, ip, SWITCH.udp_port)
            for port in PORTS:
                dropped(bed, wire.template(forger, victim, header, payload), port)
    last = job.send(1, constant(2))
    bed.expect([last], job.results(last, constant(3)), FrameOutcome.ROUND_COMPLETED)


# -- What passes -----------------------------------------------------------------------------------


def test_the_switchs_ip_behind_a_tag(bed: Testbed) -> None:
    """Only the Ethernet source is looked at in what the switch does not parse: workers ask for
    that one."""
    passed(bed, bytes(Ether(src=INTRUDER.mac, dst=KNOWN) / Dot1Q(vlan=7) / ANSWER))


def test_the_protocols_port_between_others(bed: Testbed) -> None:
    """There may be another switch, with other addresses, and its workers here."""
    body = IP(src=INTRUDER.ip, dst=HOST) / UDP(sport=0xBEE0, dport=0xBEE0) / Raw(bytes(36))
    passed(bed, bytes(Ether(src=INTRUDER.mac, dst=KNOWN) / body))


def test_to_the_switchs_addresses(bed: Testbed) -> None:
    """As destinations they are not forged."""
    passed(bed, bytes(Ether(src=INTRUDER.mac, dst=SWITCH.mac) / CONTENTS["ipv4"]))


def test_packet_outs_are_not_checked(bed: Testbed) -> None:
    frame = bytes(Ether(src=SWITCH.mac, dst=KNOWN) / ANSWER)
    expect(bed.inject([(2, frame)]), {2: [frame]}, {FrameOutcome.PACKET_OUT_SENT: 1})
