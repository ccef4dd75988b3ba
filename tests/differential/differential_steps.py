# SPDX-License-Identifier: Apache-2.0
"""What hypothesis makes sequences of: steps in words, and what they are on the wire.

A step names jobs, ranks and slots by their place in the scene, and not by numbers that are
other ones each time, so that a sequence is the same sequence whenever it is played again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from differential_targets import Event, Sent, SentOut, Written
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import NO_BLOCK, Flag, Format, FrameKind
from p4reduce_controller.fabric.schema import MulticastGroup, Op, TableRow, Update
from packet_jobs import TAG, Job, lane_limits, lane_type
from packet_testbed import BROADCAST, CPU_PORT, PORTS, SWITCH, station
from packet_tree_jobs import PartialJob, from_parent
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

SHORTEST, LONGEST = 14, 1514  # what the kernel takes from a packet socket; MTU 1500
ROUNDS_BEGIN = (0, 0xFFFFFFFE, 0x7FFFFFFE)

# Stations that the bridge knows; the last one is behind a port that there is not.
STATIONS = {f"02:00:00:00:05:{port:02x}": port for port in (*PORTS, 9)}
HOSTS = ("192.0.2.1", SWITCH.ip, "10.77.99.1", SWITCH.ip, "255.255.255.255", "224.0.0.5")
STRANGER = "02:00:00:00:00:07"
SOURCES = (STRANGER, STRANGER, STRANGER, SWITCH.mac)
MACS = (SWITCH.mac, BROADCAST, "01:00:5e:00:00:05", "02:00:00:00:06:01", *STATIONS)


# -- The scene: jobs and stations ------------------------------------------------------------------


@dataclass(frozen=True)
class JobShape:
    """A job to be. `same_slots`: those of the job before it, as after a change of owner.

    `role`: "whole", or what the switch is to it in a tree: "leaf" or "spine".
    """

    world_size: int
    slots: int
    same_slots: bool
    first_round: int
    role: str = "whole"


@dataclass
class Scene:
    """What there is while a sequence is turned into events."""

    jobs: list[Job]
    shapes: tuple[JobShape, ...]
    before: list[TableRow | MulticastGroup]
    present: dict[int, bool] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)


def set_up(shapes: tuple[JobShape, ...]) -> Scene:
    """Make jobs with ids, groups and replicas that no sequence had before."""
    jobs: list[Job] = []
    for shape in shapes:
        base = jobs[-1].base if shape.same_slots and jobs else None
        jobs.append(_job(shape, base))
    before: list[TableRow | MulticastGroup] = [row for job in jobs for row in job.rows()]
    before += [station(mac, port) for mac, port in STATIONS.items()]
    return Scene(jobs, shapes, before, dict.fromkeys(range(len(before)), True))


def _job(shape: JobShape, base: int | None) -> Job:
    if shape.role == "whole":
        return Job(None, shape.world_size, slots=shape.slots, base=base)  # type: ignore[arg-type]
    # One port is for the parent.
    ranks, spine = min(shape.world_size, len(PORTS) - 1), shape.role == "spine"
    return PartialJob(None, ranks, slots=shape.slots, base=base, spine=spine)  # type: ignore[arg-type]


# -- Steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contribute:
    """A rank's contribution, right in itself; what it means depends on what came before.

    Attributes:
        job: which, modulo their number; `rank`, `slot` likewise.
        round: from the job's first one on.
        lanes: which extreme all of them are; below zero: the seed of random ones, negated; None:
            no payload.
        padded: with bytes that mean nothing, if there are no lanes.
        beyond: how many slots beyond the job's range.
    """

    job: int
    rank: int
    slot: int
    round: int
    lanes: int | None
    padded: bool = False
    format: int = Format.INT32
    flags: int = 0
    block: int = 0
    next_block: int = 1
    next_exponent: int = 100
    tag: int = TAG
    beyond: int = 0

    def events(self, scene: Scene) -> list[Event]:
        job = scene.jobs[self.job % len(scene.jobs)]
        shape = scene.shapes[self.job % len(scene.jobs)]
        flags = self.flags & ~(Flag.PAYLOAD | Flag.PADDED)
        lanes = None
        if self.lanes is not None:
            lanes = _lanes(self.lanes, self.format)
        elif self.padded:
            flags |= Flag.PADDED
        port, frame = job.send(
            self.rank % job.world_size,
            lanes,
            pad=0xAA,
            slot=self.slot % job.slots + self.beyond * job.slots & 0xFFFF,
            round=(shape.first_round + self.round) & 0xFFFFFFFF,
            format=self.format,
            flags=flags,
            block=self.block,
            next_block=self.next_block,
            next_exponent=self.next_exponent,
            tag=self.tag,
        )
        return [Sent(port, frame)]


def _lanes(value: int, lane_format: int) -> Any:
    lane_format = lane_format if lane_format in set(Format) else Format.WRAP32
    kind, count = lane_type(lane_format), Format(lane_format).lanes
    limits = lane_limits(lane_format)
    if value < 0:
        return np.random.default_rng(-value).integers(
            limits.min, limits.max, count, kind, endpoint=True
        )
    extremes = (0, 1, limits.max, limits.min, -1)
    return np.full(count, extremes[value % len(extremes)], kind)


@dataclass(frozen=True)
class WholeRound:
    """The same contribution by all ranks of its job, from rank `rank` on; those whose bit in
    `silent` is set have no lanes."""

    by: Contribute
    silent: int

    def events(self, scene: Scene) -> list[Event]:
        ranks = scene.jobs[self.by.job % len(scene.jobs)].world_size
        events: list[Event] = []
        for rank in range(ranks):
            one = replace(self.by, rank=self.by.rank + rank)
            if self.silent >> rank & 1:
                one = replace(one, lanes=None)
            events += one.events(scene)
        return events


@dataclass(frozen=True)
class Answer:
    """What a parent answers about a round, which may be in any state; to a job that has none, a
    stranger does."""

    job: int
    slot: int
    round: int
    lanes: int | None
    part: int  # 0: whole, or the flag of a half
    status: bool
    flags: int
    contributors: int
    next_block: int
    next_exponent: int
    beyond: int

    def events(self, scene: Scene) -> list[Event]:
        job = scene.jobs[self.job % len(scene.jobs)]
        shape = scene.shapes[self.job % len(scene.jobs)]
        flags = self.flags & ~(Flag.PAYLOAD | Flag.FIRST_HALF)
        payload = b""
        if not self.status:
            flags &= ~(Flag.PADDED | Flag.SECOND_HALF)  # in a STATUS the latter is FOR_ONE
            if self.lanes is not None:
                payload = _lanes(self.lanes, Format.INT32).astype(">i4").tobytes()
            if payload and self.part:
                flags |= self.part
                payload = payload[: wire.HALF_BYTES]
        header = {
            "kind": FrameKind.STATUS if self.status else FrameKind.RESULT,
            "slot": self.slot % job.slots + self.beyond * job.slots & 0xFFFF,
            "round": (shape.first_round + self.round) & 0xFFFFFFFF,
            "flags": flags,
            "contributors": self.contributors,
            "next_block": self.next_block,
            "next_exponent": self.next_exponent,
        }
        return [Sent(*from_parent(job, payload, **header))]


@dataclass(frozen=True)
class Again:
    """A frame that was sent before, counted from the last one, on the same port."""

    back: int
    times: int = 1

    def events(self, scene: Scene) -> list[Event]:
        if not scene.sent:
            return []
        return [scene.sent[-1 - self.back % len(scene.sent)]] * self.times


@dataclass(frozen=True)
class Hello:
    """A rank introduces itself to the controller."""

    port: int
    rank: int
    nonce: int

    def events(self, scene: Scene) -> list[Event]:
        at = scene.jobs[0].ranks[self.rank % scene.jobs[0].world_size].at
        header = Aggregation(kind=FrameKind.HELLO, rank=self.rank, contributors=self.nonce)
        return [Sent(self.port, wire.template(at, SWITCH, header))]


# -- Mangling --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip:
    """Flips a bit."""

    bit: int

    def __call__(self, frame: bytes) -> bytes:
        number = int.from_bytes(frame, "big") ^ 1 << self.bit % (8 * len(frame))
        return number.to_bytes(len(frame), "big")


@dataclass(frozen=True)
class Cut:
    """Leaves the first bytes."""

    length: int

    def __call__(self, frame: bytes) -> bytes:
        return frame[: self.length]


@dataclass(frozen=True)
class Extend:
    """Puts bytes behind it."""

    count: int
    value: int

    def __call__(self, frame: bytes) -> bytes:
        return frame + bytes([self.value]) * self.count


@dataclass(frozen=True)
class SetField:
    """Sets a header's field, or with `add` adds to it, modulo its size."""

    name: str
    value: int
    add: bool = False

    def __call__(self, frame: bytes) -> bytes:
        start, width = FIELDS[self.name]
        below = 8 * len(frame) - start - width
        if below < 0:
            return frame
        number = int.from_bytes(frame, "big")
        mask = (1 << width) - 1
        old = number >> below & mask
        new = (old + self.value if self.add else self.value) & mask
        return (number ^ (old ^ new) << below).to_bytes(len(frame), "big")


def _fields() -> dict[str, tuple[int, int]]:
    """First bit and width of each field of a contribution's headers."""
    places = {}
    at = 0
    for layer in (Ether, IP, UDP, Aggregation):
        for one in layer.fields_desc:
            if layer is IP and one.name == "options":
                continue  # not there: ihl is 5
            width = round(8 * one.sz)
            places[f"{layer.__name__}.{one.name}"] = (at, width)
            at += width
    assert at == 8 * wire.PAYLOAD_OFFSET
    return places


FIELDS = _fields()


def correct_lengths(frame: bytes) -> bytes:
    """IPv4's and UDP's lengths as the frame's is."""
    frame = SetField("IP.len", len(frame) - wire.ETHERNET_BYTES)(frame)
    return SetField("UDP.len", len(frame) - wire.ETHERNET_BYTES - wire.IPV4_BYTES)(frame)


def correct_checksum(frame: bytes) -> bytes:
    """IPv4's checksum (RFC 1071) as its first 20 bytes need it."""
    start = wire.ETHERNET_BYTES
    header = SetField("IP.chksum", 0)(frame)[start : start + wire.IPV4_BYTES]
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return SetField("IP.chksum", ~total & 0xFFFF)(frame)


@dataclass(frozen=True)
class Mangled:
    """What a step sends, after some damage, perhaps by another port.

    Attributes:
        repair: 0 nothing, 1 the IPv4 checksum, 2 the lengths as well, so that the damage gets
            further in.
        port: if not 0, the one to send it by.
    """

    step: Contribute | Answer | Hello | Again | Foreign
    damage: tuple[Callable[[bytes], bytes], ...]
    repair: int = 0
    port: int = 0

    def events(self, scene: Scene) -> list[Event]:
        events: list[Event] = []
        for event in self.step.events(scene):
            assert isinstance(event, Sent)
            frame = event.frame
            for one in self.damage:
                frame = one(frame)
            if self.repair == 2:
                frame = correct_lengths(frame)
            if self.repair:
                frame = correct_checksum(frame)
            events.append(Sent(self.port or event.port, frame))
        return events


# -- Other traffic ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Foreign:
    """A frame that has nothing to do with sums.

    Attributes:
        what: a key of `_FOREIGN`.
        dst: destination MAC address.
        src_ip: likewise, and `dst_ip`; where the frame has any.
        size: bytes of payload, cut to what an Ethernet frame takes.
        number: an ARP operation, ICMP type, UDP or TCP port, or VLAN id.
        src: source MAC address; `arp_src`: the one that ARP says.
    """

    what: str
    port: int
    dst: str
    src_ip: str
    dst_ip: str
    size: int
    number: int
    src: str = STRANGER
    arp_src: str = STRANGER

    def events(self, scene: Scene) -> list[Event]:
        ethernet = Ether(src=self.src, dst=self.dst)
        body = _FOREIGN[self.what](self)
        payload = bytes(i & 0xFF for i in range(self.size))
        return [Sent(self.port, bytes(ethernet / body / Raw(payload))[:LONGEST])]


def _ip(of: Foreign, **fields: Any) -> Packet:
    return IP(src=of.src_ip, dst=of.dst_ip, **fields)


_FOREIGN: dict[str, Callable[[Foreign], Packet]] = {
    "arp": lambda of: ARP(op=of.number, hwsrc=of.arp_src, psrc=of.src_ip, pdst=of.dst_ip),
    "icmp": lambda of: _ip(of) / ICMP(type=of.number & 0xFF, id=7, seq=of.number),
    "echo": lambda of: _ip(of) / ICMP(type=8, id=7, seq=of.number),
    "fragment": lambda of: _ip(of, frag=of.number & 0x1FFF, flags="MF") / ICMP(),
    "options": lambda of: _ip(of, options=[b"\x94\x04\x00\x00"]) / ICMP(),
    "udp": lambda of: _ip(of) / UDP(sport=7, dport=of.number),
    "tcp": lambda of: _ip(of) / TCP(sport=7, dport=of.number),
    "ipv6": lambda of: IPv6(src="fe80::7", dst="ff02::1") / ICMPv6EchoRequest(seq=of.number),
    "vlan": lambda of: Dot1Q(vlan=of.number & 0xFFF) / _ip(of) / ICMP(),
    "raw": lambda of: Raw(),
}


@dataclass(frozen=True)
class Noise:
    """Random bytes behind the first `kept` bytes of a contribution."""

    port: int
    kept: int
    noise: bytes

    def events(self, scene: Scene) -> list[Event]:
        frame = scene.jobs[0].frame(0, _lanes(1, Format.INT32))[: self.kept] + self.noise
        return [Sent(self.port, frame)]


# -- The controller --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Toggle:
    """Deletes an entry or group, or inserts it again if it is not there."""

    which: int

    def events(self, scene: Scene) -> list[Event]:
        which = self.which % len(scene.before)
        scene.present[which] = not scene.present[which]
        op = Op.INSERT if scene.present[which] else Op.DELETE
        return [Written(Update(op, scene.before[which]))]


@dataclass(frozen=True)
class Regrant:
    """Gives a job's rank another number of slots, or takes a member out of a group."""

    which: int
    slots: int

    def events(self, scene: Scene) -> list[Event]:
        which = self.which % len(scene.before)
        entity = scene.before[which]
        if not scene.present[which]:
            return []
        if isinstance(entity, MulticastGroup):
            entity = replace(entity, replicas=entity.replicas[1:])
        elif entity.table == "admission":
            entity = replace(entity, params={**entity.params, "slot_count": self.slots})
        else:
            return []
        scene.before[which] = entity
        return [Written(Update(Op.MODIFY, entity))]


@dataclass(frozen=True)
class PacketOut:
    """What a step sends, sent by the controller instead, out of a port."""

    step: Contribute | Hello | Foreign | Mangled | Noise
    port: int

    def events(self, scene: Scene) -> list[Event]:
        return [
            SentOut(self.port, event.frame)
            for event in self.step.events(scene)
            if isinstance(event, Sent)
        ]


Step = (
    Contribute
    | WholeRound
    | Answer
    | Again
    | Hello
    | Mangled
    | Foreign
    | Noise
    | Toggle
    | Regrant
    | PacketOut
)


def play(
    shapes: tuple[JobShape, ...], steps: list[Step]
) -> tuple[list[TableRow | MulticastGroup], list[Event]]:
    """Return the entries to begin with, and what happens then."""
    scene = set_up(shapes)
    before = list(scene.before)
    events: list[Event] = []
    for step in steps:
        for event in step.events(scene):
            # A packet-out may be shorter, for the kernel has no say in it. Longer ones go nowhere,
            # as no port takes them, and the embedded switch refuses them from 2,047 bytes on.
            shortest = SHORTEST if isinstance(event, Sent) else 0
            if isinstance(event, Sent | SentOut) and not shortest <= len(event.frame) <= LONGEST:
                continue
            if isinstance(event, Sent):
                scene.sent.append(event)
            events.append(event)
    return before, events


# -- Strategies ------------------------------------------------------------------------------------


def boundary(width: int) -> SearchStrategy[int]:
    """Numbers of that many bits, above all those at the edges."""
    top = (1 << width) - 1
    edges = {0, 1, 2, top // 2, top // 2 + 1, top - 1, top}
    return st.sampled_from(sorted(edges)) | st.integers(0, top)


def weighted(*choices: tuple[int, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """One of some strategies, each as likely as its weight; `one_of` knows no weights."""
    return st.sampled_from([one for weight, one in choices for _ in range(weight)]).flatmap(
        lambda one: one
    )


ports = st.sampled_from(PORTS)
words = st.sampled_from([0, 1, 2, NO_BLOCK - 1, NO_BLOCK]) | boundary(32)
some_lanes = st.none() | st.integers(0, 4) | st.integers(-5, -1)

job_shapes = st.builds(
    JobShape,
    world_size=st.integers(1, 6),
    slots=st.integers(1, 2),
    same_slots=st.booleans(),
    first_round=st.sampled_from(ROUNDS_BEGIN),
    role=st.sampled_from(["whole", "whole", "leaf", "spine"]),
)
scenes = st.lists(job_shapes, min_size=1, max_size=3).map(tuple)

plain_contributions = st.builds(
    Contribute,
    job=st.integers(0, 2),
    rank=st.integers(0, 5),
    slot=st.integers(0, 1),
    round=st.integers(0, 3),
    lanes=some_lanes,
    padded=st.booleans(),
    format=st.sampled_from(Format).map(int),
)
odd_contributions = st.builds(
    Contribute,
    job=st.integers(0, 2),
    rank=st.integers(0, 5),
    slot=st.integers(0, 1),
    round=st.integers(0, 3) | boundary(32),
    lanes=some_lanes,
    padded=st.booleans(),
    format=st.sampled_from([*map(int, Format), 5, 255]),
    flags=boundary(8),
    block=words,
    next_block=words,
    next_exponent=boundary(8),
    tag=st.sampled_from([TAG, TAG + 1]) | boundary(32),
    beyond=st.sampled_from([0, 0, 0, 1, 32767]),
)
contributions = weighted((2, plain_contributions), (1, odd_contributions))
# Mostly all have lanes, or one rank has not, or only the first one has.
silent = st.sampled_from([0, 1, 2, 4, 8, 32, 62]) | st.integers(0, 63)
whole_rounds = st.builds(WholeRound, by=contributions, silent=silent)
answers = st.builds(
    Answer,
    job=st.integers(0, 2),
    slot=st.integers(0, 1),
    round=st.integers(0, 3),
    lanes=some_lanes,
    part=st.sampled_from([0, 0, Flag.FIRST_HALF, Flag.SECOND_HALF]).map(int),
    status=st.sampled_from([False, False, True]),
    flags=st.just(0) | boundary(8),
    contributors=boundary(64),
    next_block=words,
    next_exponent=boundary(8),
    beyond=st.sampled_from([0] * 9 + [1]),
)
agains = st.builds(Again, back=st.integers(0, 20), times=st.integers(1, 3))
hellos = st.builds(Hello, port=ports, rank=st.integers(0, 5), nonce=boundary(64))
foreign = st.builds(
    Foreign,
    what=st.sampled_from(["echo", "arp", *sorted(_FOREIGN)]),
    port=ports,
    dst=st.sampled_from(MACS),
    src_ip=st.sampled_from(HOSTS),
    dst_ip=st.sampled_from(HOSTS),
    size=st.integers(0, 64) | st.integers(0, LONGEST),
    number=st.sampled_from([1, 2, 8]) | boundary(16),
    src=st.sampled_from(SOURCES),
    arp_src=st.sampled_from(SOURCES),
)
noises = st.builds(
    Noise,
    port=ports,
    kept=st.sampled_from([0, 14, 34, 42, 78]),
    noise=st.binary(max_size=60),
)
set_fields = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda name: st.builds(
        SetField, name=st.just(name), value=boundary(FIELDS[name][1]), add=st.booleans()
    )
)
damages = weighted(
    (5, set_fields),
    (
        2,
        st.builds(
            Flip, bit=st.integers(0, 8 * wire.PAYLOAD_OFFSET - 1) | st.integers(0, 8 * LONGEST)
        ),
    ),
    (1, st.builds(Cut, length=st.integers(SHORTEST, 80) | st.integers(SHORTEST, 1200))),
    (
        1,
        st.builds(
            Extend,
            count=st.integers(1, 8) | st.integers(1, LONGEST - wire.PAYLOAD_OFFSET),
            value=boundary(8),
        ),
    ),
)
mangled = st.builds(
    Mangled,
    step=weighted((4, contributions), (2, answers), (2, agains), (1, hellos), (2, foreign)),
    damage=st.lists(damages, min_size=1, max_size=3).map(tuple),
    repair=st.sampled_from([0, 1, 2, 2]),
    port=st.sampled_from([0, 0, 0, *PORTS]),
)
packet_outs = st.builds(
    PacketOut,
    step=contributions | hellos | foreign | mangled | noises,
    port=st.sampled_from([*PORTS, CPU_PORT, 0, 9, 511]),
)
one_step = weighted(
    (6, contributions),
    (6, whole_rounds),
    (5, answers),
    (4, agains),
    (6, mangled),
    (3, foreign),
    (1, hellos),
    (1, noises),
    (1, st.builds(Toggle, which=st.integers(0, 40))),
    (1, st.builds(Regrant, which=st.integers(0, 40), slots=st.integers(0, 2))),
    (1, packet_outs),
)
# Lists of lists are longer on the average, and shrink as well.
steps: SearchStrategy[list[Step]] = st.lists(
    st.lists(one_step, min_size=1, max_size=20), min_size=1, max_size=20
).map(lambda lists: [step for part in lists for step in part])
