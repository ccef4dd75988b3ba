# SPDX-License-Identifier: Apache-2.0
"""A switch with something at each of its ports, and an account of all that comes out of it.

Nothing here sleeps to see that nothing comes. After the frames of a test, sentinels go the same
ways: one from each port that sent to each other port (a broadcast), back to itself (an ARP request
for the switch's address) and to the controller (a HELLO). Both switches keep the order of what
goes from one port to another, so once the sentinels are there, so is all that was to come.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.layout import own_addresses
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.p4client import PacketIn, StreamEnded, SwitchClient
from p4reduce_controller.fabric.schema import MulticastGroup, Op, TableRow, Update
from p4reduce_controller.values.counts import CounterValue
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_lab.networks.veth import open_interface
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import CPU_PORT, DEVICE_ID, SwitchLauncher
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

PORTS = (1, 2, 3, 4)
FLOOD_GROUP = 1
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
BROADCAST = "ff:ff:ff:ff:ff:ff"
VLAN_TYPES = (b"\x81\x00", b"\x88\xa8")
EXPERIMENTAL = 0x88B5  # the ethertype for local experiments

# Stations beside the ranks: one that the fixture `known` has bridged, one that nobody knows.
KNOWN = "02:00:00:00:aa:03"
KNOWN_PORT = 3
STRANGER = "02:00:00:00:aa:99"

every_port = pytest.mark.parametrize("port", PORTS)

DEADLINE = 120.0  # seconds; a test fails by it, and passes long before
# BMv2 queues 64 frames a port, and what a test sends may come out of one.
CHUNK = 32

SOL_PACKET = 263
PACKET_AUXDATA = 8
TP_STATUS_VLAN_VALID = 1 << 4

Frames = Mapping[int, Sequence[bytes]]


def link(where: str) -> Link:
    """The far end of a port: of a Unix socket, or of a veth pair."""
    if where.startswith("unix:"):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        peer.connect(where.removeprefix("unix:"))
        return Link(peer)
    peer = open_interface(where)
    peer.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    return PacketLink(peer)


class Link:
    """Whole frames to and from a port."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.close = peer.close
        self.send = peer.send
        self.settimeout = peer.settimeout
        self.settimeout(DEADLINE)

    def recv(self) -> bytes:
        return self.peer.recv(4096)


class PacketLink(Link):
    """By a packet socket, which has the kernel take a VLAN tag out of the frame."""

    def recv(self) -> bytes:
        frame, messages, _, _ = self.peer.recvmsg(4096, 64)
        for level, kind, data in messages:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
                if status & TP_STATUS_VLAN_VALID:
                    frame = frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
        return frame


@dataclass
class Seen:
    """All that a switch did about some frames."""

    received: dict[int, list[bytes]] = field(default_factory=lambda: {port: [] for port in PORTS})
    packet_ins: list[PacketIn] = field(default_factory=list)
    outcomes: Counter[FrameOutcome] = field(default_factory=Counter)

    @property
    def frames(self) -> list[bytes]:
        """What came out of any port."""
        return [frame for port in PORTS for frame in self.received[port]]


class Testbed:
    """One switch of one kind, configured by P4Runtime, with ports 1 to 4.

    Args:
        switch: has no pipeline yet.
        interface: the far ends of the ports, with {port} in it, where the switch was given its.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, switch: SwitchLauncher, interface: str | None = None) -> None:
        interface = interface or switch.interface
        self.switch = switch
        self.client = SwitchClient.connect(switch.grpc_address, DEVICE_ID, 1)
        self.client.set_pipeline(load_program())
        self.insert(own_addresses(parse_ip(SWITCH.ip), parse_mac(SWITCH.mac)))
        flood = MulticastGroup(FLOOD_GROUP, tuple((port, 0) for port in PORTS))
        self.client.write([Update(Op.INSERT, flood)])
        self.links = {port: link(interface.format(port=port)) for port in PORTS}
        self.numbers = itertools.count(1)
        self._counted = self._read_outcomes()
        self.settle()

    def close(self) -> None:
        for peer in self.links.values():
            peer.close()
        self.client.close()

    def settle(self) -> None:
        """Wait until every port is there: a Unix socket's peer may not have been taken in yet."""
        deadline = time.monotonic() + DEADLINE
        for port, peer in self.links.items():
            # Its answer must not pass for that of a sentinel: a slow switch may give it twice.
            probe = _arp(next(self.numbers))
            peer.settimeout(0.2)
            while True:
                peer.send(probe)
                try:
                    peer.recv()
                    break
                except TimeoutError:
                    assert time.monotonic() < deadline, f"port {port} does not answer ARP"
            peer.settimeout(DEADLINE)
        # The way to the controller, and away with what was sent too often.
        self.exchange([(port, _broadcast(0)) for port in PORTS])

    # -- What went through -------------------------------------------------------------------------

    def exchange(self, sent: Iterable[tuple[int, bytes]]) -> Seen:
        """Send frames, each from a port's far end, and gather all that the switch does.

        Frames from one port enter in order; those from different ports in any, so a test in
        which that matters makes two exchanges.
        """
        seen = Seen()
        sent = list(sent)
        for start in range(0, max(len(sent), 1), CHUNK):
            chunk = sent[start : start + CHUNK]
            for port, frame in chunk:
                self.links[port].send(frame)
            self._sweep(sorted({port for port, _ in chunk}) or [1], seen)
        self._count(seen)
        return seen

    def _sweep(self, ports: Sequence[int], seen: Seen) -> None:
        """Send sentinels from `ports` and take in everything until they have all come out."""
        serial = next(self.numbers)
        awaited = {
            receiver: {
                _answer(serial) if receiver == sender else _broadcast(serial, sender)
                for sender in ports
            }
            for receiver in PORTS
        }
        hellos = {(port, _hello(serial)) for port in ports}
        for port in ports:
            self.links[port].send(_broadcast(serial, port))
            self.links[port].send(_arp(serial))
            self.links[port].send(_hello(serial))
        seen.outcomes.subtract(
            {
                FrameOutcome.L2_FLOODED: len(ports),
                FrameOutcome.ARP_REPLIED: len(ports),
                FrameOutcome.HELLO_PUNTED: len(ports),
            }
        )
        self._gather(awaited, hellos, seen)

    def enters(self, port: int, frame: bytes) -> bool:
        """Whether a frame reaches the switch. Linux drops one that ends within its VLAN tag before
        any packet socket sees it (skb_vlan_untag wants 6 bytes behind the Ethernet header)."""
        cut = frame[12:14] in VLAN_TYPES and len(frame) < 20
        return not (cut and isinstance(self.links[port], PacketLink))

    def pass_ingress(self, port: int, seen: Seen) -> None:
        """Wait until all frames that were sent by one port have been through ingress, so that
        those of another one come after them."""
        serial = next(self.numbers)
        self.links[port].send(_arp(serial))
        seen.outcomes.subtract({FrameOutcome.ARP_REPLIED: 1})
        self._gather({port: {_answer(serial)}}, set(), seen)

    def pour(self, port: int, frames: Sequence[bytes]) -> Seen:
        """Send frames whose answers nobody awaits. Return what ingress has counted."""
        seen = Seen()
        for start in range(0, len(frames), CHUNK):
            for frame in frames[start : start + CHUNK]:
                self.links[port].send(frame)
            self.pass_ingress(port, seen)
        self._count(seen)
        return seen

    def inject(self, sent: Iterable[tuple[int, bytes]]) -> Seen:
        """Send frames as the controller, each out of a port."""
        seen = Seen()
        serial = next(self.numbers)
        for port, frame in sent:
            self.client.packet_out(port, frame)
        sentinel = _broadcast(serial)
        for port in (*PORTS, CPU_PORT):
            self.client.packet_out(port, sentinel)
        seen.outcomes.subtract({FrameOutcome.PACKET_OUT_SENT: len(PORTS) + 1})
        self._gather({port: {sentinel} for port in PORTS}, {(CPU_PORT, sentinel)}, seen)
        self._count(seen)
        return seen

    def _gather(
        self, awaited: dict[int, set[bytes]], packet_ins: set[tuple[int, bytes]], seen: Seen
    ) -> None:
        deadline = time.monotonic() + DEADLINE
        for port, missing in awaited.items():
            while missing:
                try:
                    frame = self.links[port].recv()
                except TimeoutError:
                    self.switch.check()
                    raise AssertionError(
                        f"port {port}: {len(missing)} sentinels did not come out within "
                        f"{DEADLINE:g} s; before them came {len(seen.received[port])} frames"
                    ) from None
                assert frame, f"port {port} was closed"
                if frame in missing:
                    missing.discard(frame)
                else:
                    seen.received[port].append(frame)
        while packet_ins:
            assert time.monotonic() < deadline, f"no packet-in of {packet_ins}"
            message = self.client.receive(0.5)
            assert not isinstance(message, StreamEnded), message.reason
            if message is None:
                self.switch.check()
            elif (message.port, message.frame) in packet_ins:
                packet_ins.discard((message.port, message.frame))
            else:
                seen.packet_ins.append(message)

    def _count(self, seen: Seen) -> None:
        now = self._read_outcomes()
        seen.outcomes.update(now)
        seen.outcomes.subtract(self._counted)
        self._counted = now
        seen.outcomes = Counter({name: n for name, n in seen.outcomes.items() if n})

    def _read_outcomes(self) -> Counter[FrameOutcome]:
        cells = self.client.read_counter("outcomes")
        return Counter({outcome: cells[outcome].frames for outcome in FrameOutcome})

    # -- Assertions --------------------------------------------------------------------------------

    def expect(
        self,
        sent: Sequence[tuple[int, bytes]],
        received: Frames | None = None,
        outcomes: Mapping[FrameOutcome, int] | FrameOutcome | None = None,
        *,
        packet_ins: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Send frames and assert that exactly `received` comes out of the ports, exactly
        `packet_ins` to the controller, and that exactly `outcomes` were counted (a single
        outcome: as often as frames were sent)."""
        expect(self.exchange(sent), received, _times(outcomes, len(sent)), packet_ins)

    def counts(self, table: str, **match: int) -> CounterValue:
        """The direct counter of the one entry of `table` that has these keys."""
        found = [row for row in self.client.read_table(table) if match.items() <= row.match.items()]
        assert len(found) == 1, f"{len(found)} entries of {table} match {match}"
        assert found[0].counts is not None
        return found[0].counts

    def insert(self, rows: Iterable[TableRow | MulticastGroup]) -> None:
        self.client.write([Update(Op.INSERT, row) for row in rows])

    def remove(self, rows: Iterable[TableRow | MulticastGroup]) -> None:
        self.client.write([Update(Op.DELETE, row) for row in rows])


def expect(
    seen: Seen,
    received: Frames | None,
    outcomes: Mapping[FrameOutcome, int],
    packet_ins: Sequence[tuple[int, bytes]] = (),
) -> None:
    """Assert what was seen. Where ranks share a port their frames may come in any order."""
    wanted = received or {}
    for port in PORTS:
        due = Counter(wanted.get(port, ()))
        came = Counter(seen.received[port])
        wrong = [f"missing {describe(frame)}" for frame in (due - came).elements()]
        wrong += [f"unexpected {describe(frame)}" for frame in (came - due).elements()]
        assert not wrong, f"port {port}: " + "; ".join(wrong)
    assert [(one.port, one.frame) for one in seen.packet_ins] == list(packet_ins)
    assert dict(seen.outcomes) == {name: n for name, n in outcomes.items() if n}


def _times(
    outcomes: Mapping[FrameOutcome, int] | FrameOutcome | None, n: int
) -> Mapping[FrameOutcome, int]:
    if isinstance(outcomes, FrameOutcome):
        return {outcomes: n}
    return outcomes or {}


def describe(frame: bytes) -> str:
    """A frame in a failure's message."""
    packet = Ether(frame)
    text = f"{len(frame)} bytes {packet.src} > {packet.dst}"
    if IP in packet:
        text += f" {packet[IP].src} > {packet[IP].dst} id {packet[IP].id} ttl {packet[IP].ttl}"
        text += f" len {packet[IP].len} sum {packet[IP].chksum:#x}"
    if UDP in packet:
        text += f" udp {packet[UDP].sport} > {packet[UDP].dport}"
    if Aggregation in packet:
        header = packet[Aggregation]
        fields = ((name.name, header.getfieldval(name.name)) for name in header.fields_desc)
        text += " " + " ".join(f"{name}={value}" for name, value in fields)
        lanes = bytes(header.payload)
        text += f" lanes {lanes[:16].hex()}…{lanes[-8:].hex()}" if lanes else ""
    else:
        text += " " + frame[14:60].hex()
    return f"<{text}>"


# -- Sentinels -------------------------------------------------------------------------------------


# Built by scapy once; each serial number is put in as the station's address.

_STATION = "02:5e:00:00:00:00"
_BROADCAST = bytes(Ether(dst=BROADCAST, src=_STATION, type=EXPERIMENTAL))
_ARP = bytes(
    Ether(dst=BROADCAST, src=_STATION) / ARP(op=1, hwsrc=_STATION, psrc="192.0.2.1", pdst=SWITCH.ip)
)
_ANSWER = bytes(
    Ether(dst=_STATION, src=SWITCH.mac)
    / ARP(op=2, hwsrc=SWITCH.mac, psrc=SWITCH.ip, hwdst=_STATION, pdst="192.0.2.1")
)
_HELLO = wire.template(
    wire.Endpoint(_STATION, "192.0.2.1", 1), SWITCH, Aggregation(kind=wire.FrameKind.HELLO)
)


def _numbered(frame: bytes, serial: int) -> bytes:
    return frame.replace(b"\x02\x5e\0\0\0\0", b"\x02\x5e" + serial.to_bytes(4, "big"))


def _broadcast(serial: int, sender: int = 0) -> bytes:
    return _numbered(_BROADCAST, serial) + bytes([sender])


def _arp(serial: int) -> bytes:
    return _numbered(_ARP, serial)


def _answer(serial: int) -> bytes:
    return _numbered(_ANSWER, serial)


def _hello(serial: int) -> bytes:
    return _numbered(_HELLO, serial)


# -- Helpers ---------------------------------------------------------------------------------------


def station(mac: str, port: int) -> TableRow:
    """The entry by which frames to a station go out of its port."""
    return TableRow("bridge", {"dst_mac": parse_mac(mac)}, "forward", {"port": port})


def flooded(frame: bytes, port: int) -> dict[int, list[bytes]]:
    """What comes out if a frame from a port goes to every other one."""
    return {other: [frame] for other in PORTS if other != port}


# -- Fixtures --------------------------------------------------------------------------------------

EMBEDDED = pytest.param("embedded", id="embedded")
BMV2 = pytest.param("bmv2", id="bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])


@pytest.fixture(scope="session", params=[EMBEDDED, BMV2])
def shared_bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A switch for all tests."""
    if request.param == "bmv2" and (reason := bmv2.unavailable()):
        pytest.skip(reason)
    with run_directory() as directory:
        kinds = {"embedded": EmbeddedSwitch, "bmv2": bmv2.Bmv2Switch}
        launcher: SwitchLauncher = kinds[request.param](directory, len(PORTS))
        with launcher as switch:
            bed = Testbed(switch)
            try:
                yield bed
            finally:
                bed.close()


@pytest.fixture
def bed(shared_bed: Testbed) -> Testbed:
    """The same, unless an earlier test brought it down."""
    shared_bed.switch.check()
    return shared_bed


@pytest.fixture
def known(bed: Testbed) -> Iterator[TableRow]:
    """The station KNOWN is at port 3."""
    row = station(KNOWN, KNOWN_PORT)
    bed.insert([row])
    yield row
    bed.remove([row])
