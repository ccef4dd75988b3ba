# SPDX-License-Identifier: Apache-2.0
"""Slots, window and switches that a network needs.

A slot has one frame in flight, so the bytes in flight are the window times a frame. They fill a
link from the product of bandwidth and delay on. SwitchML (Sapio et al., NSDI 2021, on tuning the
pool's size) divides that by a packet's size, and takes the next power of two as its pool of slots.
More slots only wait in queues, and fewer leave the link idle. Here the delay includes the computing
of hosts and switches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4reduce.wire.format import MAX_SLOTS

from p4reduce_lab.planning.network import LARGEST_FANOUT, PlannedLink, PlannedNetwork, SwitchCost

if TYPE_CHECKING:  # it takes numpy, for which a launcher of switches need not wait
    from p4reduce_lab.planning.schemes import Cluster

_LEAST_SLOTS = 32
"""What a job gets that does not ask; fewer only save memory in the switch."""


@dataclass(frozen=True)
class Pool:
    """The slots and switches for a job.

    Attributes:
        window: frames under way that fill the bottleneck.
        slots: the power of two above, twice as many so that a late rank does not empty the link,
            between 32 and 1,024.
        enough: whether a job can have as many.
        round_trip: seconds, without queues.
    """

    window: int
    slots: int
    enough: bool
    round_trip: float


def frame_rate(network: PlannedNetwork) -> tuple[float, str]:
    """Return the largest number of contributions per second of each rank, and what limits it.

    For one tree of the network; switches side by side multiply it.
    """
    switch, frame = network.switch, network.switch.frame
    names = ["the ranks' links", *["the links between switches"] * (len(network.links) - 1)]
    limits = [(link.seconds(frame), name) for link, name in zip(network.shares, names, strict=True)]
    if network.trunk is not None:
        trunk = max(network.fanouts) * network.trunk.seconds(frame)
        limits.append((trunk, "interfaces of the switches' machines"))
    top = len(network.fanouts) - 1
    for level, fanout in enumerate(network.fanouts):
        # A switch below the root also sends a frame up and gets a result, as much work as a child.
        served = fanout if level == top else fanout + 1
        limits.append((served * switch.per_child, "the switches' cores"))
    limits.append((network.host * network.planes, "the ranks' progress threads"))
    seconds, name = max(limits, key=lambda limit: limit[0])
    return 1 / seconds, name


def pool(network: PlannedNetwork) -> Pool:
    """Return the slots and the window for a network."""
    rate, _ = frame_rate(network)
    frame = network.switch.frame
    frames = sum(2 * link.seconds(frame) for link in network.shares)
    if network.trunk is not None:
        frames += sum(2 * n * network.trunk.seconds(frame) for n in network.fanouts)
    round_trip = network.round_trip + frames
    window = max(1, math.ceil(rate * round_trip - 1e-9))
    wanted = 1 << max(0, math.ceil(math.log2(2 * window)))
    return Pool(window, min(max(wanted, _LEAST_SLOTS), MAX_SLOTS), window <= MAX_SLOTS, round_trip)


def switches_for_line_rate(cluster: Cluster) -> int:
    """Return how many switches side by side are enough to limit nothing.

    Each takes an equal share of the blocks. Zou et al. (2017) have the same rule for parameter
    servers: as many as it takes for their bandwidth together to be that of all workers.

    Raises:
        ValueError: more ranks than a switch has children.
    """
    if cluster.ranks > LARGEST_FANOUT:
        raise ValueError(f"{cluster.ranks} ranks are more than a switch's {LARGEST_FANOUT}")
    frame = cluster.port_link.seconds(cluster.switch.frame)
    busy = cluster.ranks * cluster.switch.per_child
    if cluster.port_trunk is not None:
        busy = max(busy, cluster.ranks * cluster.port_trunk.seconds(cluster.switch.frame))
    return max(1, math.ceil(busy / frame - 1e-9))


def switches_for_an_interface(link: PlannedLink, switch: SwitchCost) -> int:
    """Return how many switches side by side on one host keep its one interface busy.

    Each contribution crosses the interface once in each direction, whatever the number of ranks,
    and takes a core of one of the switches meanwhile.
    """
    frame = link.seconds(switch.frame)
    return max(1, math.ceil(switch.per_child / frame - 1e-9))


def fanout_for_line_rate(cluster: Cluster) -> int:
    """Return how many children a switch can have without being the limit, 2 to 64.

    A switch in the middle of a tree takes its children's frames, sends one up, takes its result and
    sends a copy to each child. Where all of this crosses one interface (`trunk`), any number is too
    many, and the least is returned.
    """
    if cluster.trunk is not None:
        return 2
    switch = cluster.switch
    if switch.per_child == 0:
        return LARGEST_FANOUT
    served = math.floor(cluster.port_link.seconds(switch.frame) / switch.per_child + 1e-9)
    return min(max(served - 1, 2), LARGEST_FANOUT)  # the result from above is served too
