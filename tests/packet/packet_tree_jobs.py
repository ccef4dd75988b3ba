# SPDX-License-Identifier: Apache-2.0
"""Jobs of a switch that has a parent, its frames and its answers."""

from __future__ import annotations

from typing import Any

from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.schema import MulticastGroup, TableRow
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from packet_jobs import GROUPS, REPLICAS, TAG, Job, Jobs, Lanes, Rank, answer, encode
from packet_testbed import PORTS, SWITCH, Testbed
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

CHILD = 5  # the switch's number at its parent
PARENT = Rank(CHILD, PORTS[-1], wire.Endpoint("02:00:00:00:02:01", "10.77.1.1", 0xBEE0))


class PartialJob(Job):
    """A job whose sums are part of a parent's: `Job`, but for where a complete round goes.

    Rank r is at port r + 1, up to three of them. With `spine` they are switches, which hear and
    speak at the aggregation port.
    """

    def __init__(
        self, bed: Testbed, world_size: int, *, spine: bool = False, **options: Any
    ) -> None:
        super().__init__(bed, world_size, **options)
        assert all(rank.port != PARENT.port for rank in self.ranks)
        if spine:
            self.ranks = [
                Rank(one.number, one.port, wire.Endpoint(one.at.mac, one.at.ip, 0xBEE0))
                for one in self.ranks
            ]
        self.group_up = next(GROUPS)
        self.replica_up = next(REPLICAS)

    def rows(self) -> list[TableRow | MulticastGroup]:
        address = {
            "mac": parse_mac(PARENT.at.mac),
            "ip": parse_ip(PARENT.at.ip),
            "udp_port": PARENT.at.udp_port,
            "rank": PARENT.number,
        }
        match = {
            "ingress_port": PARENT.port,
            "src_ip": parse_ip(PARENT.at.ip),
            "job": self.id,
            "rank": CHILD,
        }
        down = {
            "all_workers": self.everyone,
            "slot_base": self.base,
            "slot_count": self.slots,
            "group_full": self.group_full,
        }
        return [
            TableRow("delivery", {"replica": self.replica_up}, "whole", address),
            MulticastGroup(self.group_up, ((PARENT.port, self.replica_up),)),
            *super().rows(),
            TableRow("uplink", match, "pass_down", down),
        ]

    def admission(self, rank: Rank) -> TableRow:
        row = super().admission(rank)
        return TableRow(
            row.table, row.match, "grant_partial", {**row.params, "group_up": self.group_up}
        )

    # -- Up ----------------------------------------------------------------------------------------

    def up(
        self, sent: tuple[int, bytes], lanes: Lanes | None = None, **header: Any
    ) -> dict[int, list[bytes]]:
        """The contribution to the parent, made of the frame `sent`; padded with the byte `pad` or
        the bytes `padding`."""
        header = {"kind": FrameKind.CONTRIBUTE, "contributors": self.everyone, **header}
        padding = header.pop("padding", None)
        if "pad" in header:
            padding = bytes([header.pop("pad")]) * wire.PAYLOAD_BYTES
        frame = answer(sent[1], PARENT, lanes, **header)
        return {PARENT.port: [frame if padding is None else padded(frame, padding)]}

    # -- Down --------------------------------------------------------------------------------------

    def from_parent(
        self, /, lanes: Lanes | bytes | None = None, **header: Any
    ) -> tuple[int, bytes]:
        """A RESULT of the parent, unless `header` says else; the round's as `Job.frame` has it."""
        return from_parent(self, lanes, **header)

    def passed_down(
        self, sent: tuple[int, bytes], lanes: Lanes | bytes | None = None, **header: Any
    ) -> dict[int, list[bytes]]:
        """What each rank gets of a parent's answer."""
        header = {"contributors": self.everyone, **header}
        out: dict[int, list[bytes]] = {port: [] for port in PORTS}
        for rank in self.ranks:
            out[rank.port].append(answer(sent[1], rank, lanes, **header))
        return out

    def both_halves(self, lanes: Lanes, **header: Any) -> list[tuple[int, bytes]]:
        """The parent's RESULT in halves."""
        block, flags = encode(lanes), header.pop("flags", 0)
        return [
            self.from_parent(block[:512], flags=flags | Flag.FIRST_HALF, **header),
            self.from_parent(block[512:], flags=flags | Flag.SECOND_HALF, **header),
        ]


def from_parent(
    job: Job, /, lanes: Lanes | bytes | None = None, **header: Any
) -> tuple[int, bytes]:
    """What `PartialJob.from_parent` is, of any job."""
    fields: dict[str, Any] = {
        "kind": FrameKind.RESULT,
        "job": job.id,
        "rank": CHILD,
        "block": 0,
        "next_block": 1,
        "next_exponent": 100,
        "tag": TAG,
        "contributors": 0b11,
        "flags": 0,
    }
    fields.update(header)
    payload = b"" if lanes is None else lanes if isinstance(lanes, bytes) else encode(lanes)
    fields["flags"] |= Flag.PAYLOAD if payload else 0
    return PARENT.port, wire.template(PARENT.at, SWITCH, Aggregation(**fields), payload)


def padded(frame: bytes, padding: bytes) -> bytes:
    """A frame without lanes, as it is with the flag PADDED and the padding."""
    packet: Packet = Ether(frame)
    packet[Aggregation].flags |= Flag.PADDED
    for computed in ((packet[IP], "len"), (packet[IP], "chksum"), (packet[UDP], "len")):
        computed[0].delfieldval(computed[1])
    return bytes(packet / Raw(padding))


class TreeJobs(Jobs):
    """`Jobs` that have a parent as well."""

    def partial(self, world_size: int = 2, **options: Any) -> PartialJob:
        """A job of a tree's leaf, or spine."""
        return self.install(PartialJob(self._bed, world_size, **options))
