# SPDX-License-Identifier: Apache-2.0
"""The ways to sum that are compared: a ring, one switch, several side by side, a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from p4reduce_lab.planning.events import allreduce_seconds
from p4reduce_lab.planning.framing import NUMBER_BYTES, PlannedTensor
from p4reduce_lab.planning.network import (
    LARGEST_FANOUT,
    SWITCHES,
    PlannedLink,
    PlannedNetwork,
    SwitchCost,
    tree_fanouts,
)
from p4reduce_lab.planning.ring import mean_delay, ring_octets, ring_seconds

HOST_SECONDS = 3.3e-6
"""Of a rank's progress thread for a block (docs/performance.md, "The worker", machine code)."""

CALL_SECONDS = 0.35e-3
"""Of software for each all-reduce, from the call to its first frame and back (docs/performance.md,
"All-reduce": 1 KB with a single rank)."""

PREPARE_SECONDS = 0.47e-9
"""Of a rank for each number before its first frame leaves, to find exponents (`python -m
bench.worker.costs --of exponents`: 2.0 ms for 16 MB)."""

RING_STEP_SECONDS = 50e-6
"""Of software for each step of a ring: two system calls and two wake-ups."""


@dataclass(frozen=True)
class Cluster:
    """The user's model, links and switch.

    Attributes:
        ranks: of the job.
        link: of a rank to its switch.
        uplink: of a switch to the one above it; by default as `link`.
        switch: what its cores take.
        host: seconds of a rank's progress thread for a block.
        call: seconds of software for each all-reduce by switches.
        prepare: seconds of a rank for each number of it, before the first frame.
        ring_step: seconds of software for each step of a ring.
        slots: of a job.
        fanout: children of a switch at most.
        trunk: where switches are machines with one interface each, that link; see `PlannedNetwork`.
            Ranks then have one interface as well, whatever the number of switches.
    """

    ranks: int
    link: PlannedLink
    uplink: PlannedLink | None = None
    switch: SwitchCost = SWITCHES["hardware"]
    host: float = HOST_SECONDS
    call: float = CALL_SECONDS
    prepare: float = PREPARE_SECONDS
    ring_step: float = RING_STEP_SECONDS
    slots: int = 128
    fanout: int = LARGEST_FANOUT
    trunk: PlannedLink | None = None

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"{self.ranks} ranks; a job has at least one")

    def framed(self, link: PlannedLink) -> PlannedLink:
        """Return a link with what the switch's ports put around each frame."""
        return replace(link, overhead=link.overhead + self.switch.framing)

    @property
    def port_link(self) -> PlannedLink:
        """`link` with the switch's framing.

        A ring's segments do not have that: `by_ring` takes `link`.
        """
        return self.framed(self.link)

    @property
    def port_trunk(self) -> PlannedLink | None:
        """`trunk`, framed."""
        return self.framed(self.trunk) if self.trunk else None

    def star(self, planes: int = 1) -> PlannedNetwork:
        """Return one switch, or several side by side. Raises ValueError if there are too many
        ranks."""
        return PlannedNetwork(
            (self.ranks,),
            (self.port_link,),
            self.switch,
            self.host,
            planes,
            trunk=self.port_trunk,
            one_interface=self.trunk is not None,
        )

    def tree(self) -> PlannedNetwork:
        """The flattest tree with all ranks; one switch where that is enough."""
        fanouts = tree_fanouts(self.ranks, self.fanout)
        links = [self.port_link, *[self.framed(self.uplink or self.link)] * (len(fanouts) - 1)]
        return PlannedNetwork(
            fanouts,
            tuple(links),
            self.switch,
            self.host,
            ranks=self.ranks,
            trunk=self.port_trunk,
        )


@dataclass(frozen=True)
class Estimate:
    """One all-reduce.

    Attributes:
        seconds: from the call to the last result.
        octets: that a rank sends, in whole frames.
    """

    seconds: float
    octets: float


def by_ring(cluster: Cluster, tensor: PlannedTensor) -> Estimate:
    """By a ring over TCP, without skipping anything. Its ranks are joined as the tree's are."""
    octets = NUMBER_BYTES * tensor.elements
    fanouts = tree_fanouts(cluster.ranks, cluster.fanout)
    delays = (cluster.link.delay, *[(cluster.uplink or cluster.link).delay] * (len(fanouts) - 1))
    seconds = ring_seconds(
        cluster.ranks,
        octets,
        cluster.link,
        delay=mean_delay(cluster.ranks, delays, fanouts),
        step=cluster.ring_step,
    )
    return Estimate(seconds, ring_octets(cluster.ranks, octets))


def by_switches(cluster: Cluster, tensor: PlannedTensor, network: PlannedNetwork) -> Estimate:
    """Return the estimate for switches that sum."""
    load = tensor.load(cluster.ranks, network.switch.lanes, network.switch.spared)
    before = cluster.call + cluster.prepare * tensor.elements
    seconds = before + allreduce_seconds(network, load, cluster.slots)
    octets = network.planes * load.part(network.planes).octets_up(cluster.slots)
    return Estimate(seconds, octets)
