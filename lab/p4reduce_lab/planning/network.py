# SPDX-License-Identifier: Apache-2.0
"""The properties of links, switches and hosts, and how switches are joined."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from p4reduce.wire.format import frame_bytes
from p4reduce_native.datagrams import FLOAT32_SPARED_BYTES, FRAMING_BYTES
from p4reduce_native.frame_lanes import FRAME_LANES

LARGEST_FANOUT = 64
"""Children of a switch at most: the bits of the protocol's `contributors`."""

MOST_SIDE_BY_SIDE = 16
"""Switches that a communicator may be spread over."""

ETHERNET_OVERHEAD = 24
"""Bytes that Ethernet adds to a frame on a real wire: preamble 8, FCS 4, gap 12."""


@dataclass(frozen=True)
class PlannedLink:
    """One link, the same in both directions.

    Attributes:
        rate: bits per second.
        delay: seconds that a bit takes to the other end.
        overhead: bytes of each frame on the wire beyond those from the Ethernet header on. A
            shaper of the kernel (tbf, htb) counts none, a real wire 24.
        burst: bytes that a shaper lets pass at once after a pause; 0: the link is a wire.
    """

    rate: float
    delay: float = 0.0
    overhead: int = ETHERNET_OVERHEAD
    burst: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"a link's rate of {self.rate} bit/s; it must be above 0")
        if self.delay < 0 or self.overhead < 0 or self.burst < 0:
            raise ValueError(f"{self}: delay, overhead and burst cannot be below 0")

    def seconds(self, octets: float) -> float:
        """Return how many seconds a frame of this many bytes keeps the link busy."""
        return 8 * (octets + self.overhead) / self.rate


@dataclass(frozen=True)
class SwitchCost:
    """The time that a switch's core takes per frame; zero for hardware at line rate.

    Attributes:
        name: for people.
        contribution: seconds for a frame that comes in.
        copy: seconds for each copy of a result that leaves.
        framing: bytes that its ports put around each frame.
        spared: bytes that they leave out of a frame of float32.
        lanes: of 32 bits in its frames.
    """

    name: str
    contribution: float = 0.0
    copy: float = 0.0
    framing: int = 0
    spared: int = 0
    lanes: int = FRAME_LANES

    @property
    def frame(self) -> int:
        """Bytes of a frame of float32, from the Ethernet header on."""
        return frame_bytes(self.lanes) - self.spared

    @property
    def per_child(self) -> float:
        """Seconds for a child's contribution, and for the copy of the result that it gets."""
        return self.contribution + self.copy


SWITCHES = {
    "hardware": SwitchCost("a switch at line rate"),
    "tofino2": SwitchCost("Tofino 2 at line rate, in frames of 64 lanes", lanes=64),
    # docs/figures.md, "make bench": processor time per received frame, with one copy sent.
    # Half of it counts for each.
    "embedded": SwitchCost("the embedded switch as machine code", 1.6e-6, 1.6e-6),
    # docs/performance.md, "What limits large tensors": per contribution, its result included.
    "embedded-udp": SwitchCost(
        "the embedded switch, by UDP with offloads",
        0.3e-6,
        0.3e-6,
        framing=FRAMING_BYTES,
        spared=FLOAT32_SPARED_BYTES,
    ),
    "embedded-memory": SwitchCost("the embedded switch, by shared memory", 0.15e-6, 0.15e-6),
    # docs/performance.md: 5,700 contributions/s with their results.
    "python": SwitchCost("the embedded switch, interpreted", 9e-5, 9e-5),
    "bmv2": SwitchCost("BMv2", 23e-6, 23e-6),  # 21,900 contributions/s on two cores
}


@dataclass(frozen=True)
class PlannedNetwork:
    """A tree of equal switches, or several such trees side by side.

    Attributes:
        fanouts: children of each switch, from the leaves up: (8,) is one switch with 8 ranks,
            (64, 16) are 16 leaves of 64 ranks under a root.
        links: for each of these levels, that from a child to its switch.
        switch: each of them.
        host: seconds of a rank's progress thread for a block, sent and received.
        planes: how many such trees side by side.
        ranks: of the job, where the last leaf is not full; by default all places.
        trunk: where a switch is a machine with one interface, that link: all of its children's
            frames cross it as well. None: each child has a port of the switch to itself.
        one_interface: whether a rank has one link for all trees side by side, which then share
            its rate, or a link of its own to each.
    """

    fanouts: tuple[int, ...]
    links: tuple[PlannedLink, ...]
    switch: SwitchCost = SWITCHES["hardware"]
    host: float = 0.0
    planes: int = 1
    ranks: int = 0
    trunk: PlannedLink | None = None
    one_interface: bool = False

    def __post_init__(self) -> None:
        if not self.fanouts or len(self.fanouts) != len(self.links):
            raise ValueError(f"{len(self.fanouts)} levels of switches with {len(self.links)} links")
        if not all(1 <= fanout <= LARGEST_FANOUT for fanout in self.fanouts):
            raise ValueError(f"{self.fanouts}: a switch has 1 to {LARGEST_FANOUT} children")
        if self.planes < 1:
            raise ValueError(f"{self.planes} networks side by side; at least 1 is needed")
        if not 0 <= self.ranks <= self.places:
            raise ValueError(f"{self.ranks} ranks, but {self.places} places")

    @property
    def places(self) -> int:
        """The number of ports for ranks."""
        return math.prod(self.fanouts)

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.ranks or self.places

    @property
    def shares(self) -> tuple[PlannedLink, ...]:
        """The links as one of the trees has them."""
        first, *others = self.links
        if self.one_interface:
            first = replace(first, rate=first.rate / self.planes)
        return (first, *others)

    @property
    def switches(self) -> int:
        """The number of switches in all."""
        below, count = self.world_size, 0
        for fanout in self.fanouts:
            below = math.ceil(below / fanout)
            count += below
        return count * self.planes

    @property
    def round_trip(self) -> float:
        """Seconds from a contribution to its result while nothing queues, without lanes' bytes."""
        delay = sum(2 * link.delay for link in self.links)
        delay += 2 * self.trunk.delay * len(self.fanouts) if self.trunk else 0.0
        return delay + self.host + sum(self.fanouts) * self.switch.per_child


def tree_fanouts(ranks: int, fanout: int = LARGEST_FANOUT) -> tuple[int, ...]:
    """Return the flattest, most even tree of equal switches for this many ranks.

    Raises:
        ValueError: a fanout below 2 or above 64, or no rank.
    """
    if not 2 <= fanout <= LARGEST_FANOUT:
        raise ValueError(f"a fanout of {fanout}; 2 to {LARGEST_FANOUT} are possible")
    if ranks < 1:
        raise ValueError(f"a tree for {ranks} ranks")
    levels, places = 1, fanout
    while places < ranks:
        levels, places = levels + 1, places * fanout
    fanouts, left = [], ranks
    for level in range(levels, 0, -1):
        own = math.ceil(left ** (1 / level) - 1e-9)
        fanouts.append(own)
        left = math.ceil(left / own)
    return tuple(fanouts)
