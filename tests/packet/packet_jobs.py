# SPDX-License-Identifier: Apache-2.0
"""Jobs as the controller sets them up, their frames, and the answers that they must get."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, Format, FrameKind
from p4reduce.wire.lanes import pack
from p4reduce_controller.fabric.schema import MulticastGroup, TableRow
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from packet_testbed import PORTS, SWITCH, Testbed
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

AnyJob = TypeVar("AnyJob", bound="Job")
Lanes = NDArray[np.signedinteger[Any]]

SLOTS = 1024
TAG = 0x7461_6721

_jobs = itertools.count(0x0A00_0001)
GROUPS = itertools.cycle(range(2, 1 << 15))
REPLICAS = itertools.cycle(range(1, 1 << 16))
_slots = itertools.cycle(range(SLOTS))


def _take(slots: int) -> int:
    """The first of that many slots in a row, others than before until all have been used."""
    first = next(_slots)
    if first + slots > SLOTS:
        while next(_slots) != SLOTS - 1:
            pass
        first = next(_slots)
    for _ in range(slots - 1):
        next(_slots)
    return first


@dataclass(frozen=True)
class Rank:
    """Where a rank is attached."""

    number: int
    port: int
    at: wire.Endpoint


class Job:
    """A job whose rank r is at port r + 1, or round and round where there are more ranks.

    Args:
        bed: where it is.
        world_size: how many ranks.
        slots: how many; each job has others, until all have been used.
        base: the first slot, for a job that is to have those of another.
        far: give it an id that differs from those of other jobs in many bits.
    """

    def __init__(
        self,
        bed: Testbed,
        world_size: int,
        *,
        slots: int = 2,
        base: int | None = None,
        far: bool = False,
    ) -> None:
        self.id = next(_jobs) ^ (0xFFFF_0000 if far else 0)
        self.world_size = world_size
        self.slots = slots
        self.base = _take(slots) if base is None else base
        self.everyone = (1 << world_size) - 1
        self.ranks = [
            Rank(
                number=rank,
                port=PORTS[rank % len(PORTS)],
                at=wire.Endpoint(f"02:00:00:00:01:{rank:02x}", f"10.77.0.{rank + 1}", 49152 + rank),
            )
            for rank in range(world_size)
        ]
        self.group_full = next(GROUPS)
        self.group_halves = next(GROUPS)
        self.replicas = [
            {action: next(REPLICAS) for action in ("whole", "first_half", "second_half")}
            for _ in self.ranks
        ]
        self._bed = bed

    def rows(self) -> list[TableRow | MulticastGroup]:
        """What the controller writes for this job."""
        rows: list[TableRow | MulticastGroup] = []
        for rank, replicas in zip(self.ranks, self.replicas, strict=True):
            address = {
                "mac": parse_mac(rank.at.mac),
                "ip": parse_ip(rank.at.ip),
                "udp_port": rank.at.udp_port,
                "rank": rank.number,
            }
            rows += [
                TableRow("delivery", {"replica": replica}, action, address)
                for action, replica in replicas.items()
            ]
        rows.append(self.group(self.group_full, "whole"))
        rows.append(self.group(self.group_halves, "first_half", "second_half"))
        rows += [self.admission(rank) for rank in self.ranks]
        return rows

    def group(self, group: int, *actions: str) -> MulticastGroup:
        return MulticastGroup(
            group,
            tuple(
                (rank.port, replicas[action])
                for rank, replicas in zip(self.ranks, self.replicas, strict=True)
                for action in actions
            ),
        )

    def admission(self, rank: Rank) -> TableRow:
        return TableRow(
            "admission",
            {
                "ingress_port": rank.port,
                "src_ip": parse_ip(rank.at.ip),
                "job": self.id,
                "rank": rank.number,
            },
            "grant",
            {
                "worker_bit": 1 << rank.number,
                "all_workers": self.everyone,
                "slot_base": self.base,
                "slot_count": self.slots,
                "group_full": self.group_full,
                "group_halves": self.group_halves,
            },
        )

    # -- Frames ------------------------------------------------------------------------------------

    def frame(
        self, rank: int, /, lanes: Lanes | None = None, *, pad: int = 0, **header: Any
    ) -> bytes:
        """A contribution of `rank`: with payload if `lanes` are given, padded with the byte
        `pad` if the flag PADDED is."""
        fields: dict[str, Any] = {
            "job": self.id,
            "rank": rank,
            "flags": 0,
            "block": 0,
            "next_block": 1,
            "next_exponent": 100,
            "tag": TAG,
        }
        fields.update(header)
        payload = b""
        if lanes is not None:
            fields["flags"] |= Flag.PAYLOAD
            payload = encode(lanes)
        elif fields["flags"] & Flag.PADDED:
            payload = bytes([pad]) * wire.PAYLOAD_BYTES
        return wire.template(self.ranks[rank].at, SWITCH, Aggregation(**fields), payload)

    def send(self, rank: int, /, lanes: Lanes | None = None, **header: Any) -> tuple[int, bytes]:
        """The same, with the port that it enters by."""
        return self.ranks[rank].port, self.frame(rank, lanes, **header)

    def results(
        self, sent: tuple[int, bytes], lanes: Lanes | None = None, **header: Any
    ) -> dict[int, list[bytes]]:
        """The RESULT of each rank, by port, when `sent` completes a round."""
        out: dict[int, list[bytes]] = {port: [] for port in PORTS}
        for rank in self.ranks:
            out[rank.port].append(
                answer(sent[1], rank, lanes, contributors=self.everyone, **header)
            )
        return out

    def halves(
        self, sent: tuple[int, bytes], lanes: Lanes, **header: Any
    ) -> dict[int, list[bytes]]:
        """The same, where it has no room for the lanes in one."""
        out: dict[int, list[bytes]] = {port: [] for port in PORTS}
        block = encode(lanes)
        flags = header.pop("flags", 0)
        for rank in self.ranks:
            for half, flag in ((0, Flag.FIRST_HALF), (1, Flag.SECOND_HALF)):
                out[rank.port].append(
                    answer(
                        sent[1],
                        rank,
                        block[half * wire.HALF_BYTES :][: wire.HALF_BYTES],
                        contributors=self.everyone,
                        flags=flags | flag,
                        **header,
                    )
                )
        return out

    def repeated(
        self, sent: tuple[int, bytes], rank: int, lanes: Lanes | None = None, **header: Any
    ) -> dict[int, list[bytes]]:
        """The RESULT that `rank` alone gets for a retransmission."""
        header = {"contributors": self.everyone, **header}
        return {sent[0]: [answer(sent[1], self.ranks[rank], lanes, **header)]}

    def status(
        self, sent: tuple[int, bytes], rank: int, contributors: int, **header: Any
    ) -> dict[int, list[bytes]]:
        """The STATUS that `rank` alone gets for a retransmission."""
        fields = {"kind": FrameKind.STATUS, "contributors": contributors, "next_exponent": 0}
        header = {**fields, **header}
        return {sent[0]: [answer(sent[1], self.ranks[rank], **header)]}

    def status_for_all(
        self, sent: tuple[int, bytes], contributors: int, **header: Any
    ) -> dict[int, list[bytes]]:
        """The STATUS that each rank gets for a retransmission with TELL_ALL, by port."""
        out: dict[int, list[bytes]] = {}
        for rank in self.ranks:
            copies = self.status((rank.port, sent[1]), rank.number, contributors, **header)
            out.setdefault(rank.port, []).extend(copies[rank.port])
        return out


def answer(sent: bytes, rank: Rank, lanes: Lanes | bytes | None = None, **header: Any) -> bytes:
    """What the switch makes of the frame `sent` for `rank`: a RESULT, unless `header` says else.

    It is the sent frame turned round; `header` has what is not as in that.
    """
    packet: Packet = Ether(sent)
    packet.src, packet.dst = SWITCH.mac, rank.at.mac
    ip, udp, agg = packet[IP], packet[UDP], packet[Aggregation]
    ip.src, ip.dst, ip.ttl = SWITCH.ip, rank.at.ip, 64
    udp.sport, udp.dport, udp.chksum = wire.AGGREGATION_PORT, rank.at.udp_port, 0
    for computed in ((ip, "len"), (ip, "chksum"), (udp, "len")):
        computed[0].delfieldval(computed[1])
    agg.remove_payload()
    agg.kind, agg.rank = FrameKind.RESULT, rank.number
    payload = b"" if lanes is None else lanes if isinstance(lanes, bytes) else encode(lanes)
    flags = header.pop("flags", 0)
    agg.flags = (agg.flags & Flag.RETRANSMISSION) | flags | (Flag.PAYLOAD if payload else 0)
    for name, value in header.items():
        agg.setfieldval(name, value)
    return bytes(packet / Raw(payload)) if payload else bytes(packet)


def encode(lanes: Lanes) -> bytes:
    """Lanes on the wire. Twice as many int8 as there are bytes are lanes of 4 bits."""
    if lanes.dtype == np.int8 and lanes.size == Format.INT4.lanes:
        block = pack(lanes, Format.INT4).tobytes()
    else:
        block = lanes.astype(lanes.dtype.newbyteorder(">")).tobytes()
    assert len(block) == wire.PAYLOAD_BYTES
    return block


def lane_type(lane_format: int) -> Any:
    return (np.int32, np.int16, np.int8, np.int32, np.int8)[lane_format]


class Limits(NamedTuple):
    """Of a lane: the smallest and the largest number that it holds."""

    min: int
    max: int


def lane_limits(lane_format: int) -> Limits:
    most = Format(lane_format).lane_maximum
    return Limits(-most - 1, most)


def constant(value: int, lane_format: int = Format.INT32) -> Lanes:
    """A block with the same number in all lanes."""
    kind = lane_type(lane_format)
    return np.full(Format(lane_format).lanes, value, kind)


def ramp(start: int = 0) -> Lanes:
    """A block of int32 lanes that are all different."""
    return np.arange(start, start + 256, dtype=np.int32)


def random_lanes(rng: np.random.Generator, lane_format: int, share: int = 1) -> Lanes:
    """A block of random lanes so small that `share` of them add up without overflow."""
    kind = lane_type(lane_format)
    limit = Format(lane_format).lane_maximum // share
    return rng.integers(-limit, limit, Format(lane_format).lanes, kind, endpoint=True)


class Jobs:
    """Makes jobs, and removes their entries in the end."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self._made: list[TableRow | MulticastGroup] = []

    def __call__(self, world_size: int = 2, **options: Any) -> Job:
        return self.install(Job(self._bed, world_size, **options))

    def install(self, job: AnyJob) -> AnyJob:
        rows = job.rows()
        self._bed.insert(rows)
        self._made += rows
        return job

    def forget(self, rows: Sequence[TableRow | MulticastGroup]) -> None:
        """The test has removed these itself."""
        for row in rows:
            self._made.remove(row)

    def close(self) -> None:
        # Last first: an admission entry goes before the groups that it names.
        self._bed.remove(reversed(self._made))


@pytest.fixture
def jobs(bed: Testbed) -> Iterator[Jobs]:
    """Makes jobs that are gone after the test."""
    made = Jobs(bed)
    yield made
    made.close()
