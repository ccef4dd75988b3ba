# SPDX-License-Identifier: Apache-2.0
"""The switches for a number of ranks on one interface: one, several side by side, or a tree."""

from __future__ import annotations

from p4reduce_native.cpus import usable_cpus

from p4reduce_lab.deploy.interface import link_rate
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.planning.network import (
    LARGEST_FANOUT,
    MOST_SIDE_BY_SIDE,
    SWITCHES,
    PlannedLink,
    tree_fanouts,
)
from p4reduce_lab.planning.sizing import switches_for_an_interface
from p4reduce_lab.topology import LabTopology

_CORES_LEFT = 1  # for the controller, and whatever else the host does


def arrange(settings: DeploySettings, cores: int | None = None) -> LabTopology:
    """Choose switches by the planner's rules, unless the settings do.

    A switch has 64 ranks at most, so more make a tree. Up to 64 ranks there are as many switches
    side by side as it takes for their cores to keep up with the host's interface. There are no more
    of them than the host has cores. Where all ranks are on this host too, they need the cores, and
    there is one switch.

    Args:
        settings: of the network.
        cores: of this host; None: those that this process may use.

    Raises:
        ArgumentsError: what is asked for does not fit the number of ranks.
    """
    if settings.tree:
        return LabTopology.parse(settings.tree, settings.ranks)
    if settings.switches:
        return _side_by_side(settings.ranks, settings.switches)
    if settings.ranks > LARGEST_FANOUT:
        leaf, leaves = tree_fanouts(settings.ranks)
        return LabTopology.tree(leaves, leaf, ranks=settings.ranks)
    if not settings.is_remote:
        return _side_by_side(settings.ranks, 1)
    cores = usable_cpus() if cores is None else cores
    link = PlannedLink(settings.link_rate or link_rate(settings.host))
    needed = switches_for_an_interface(link, SWITCHES["embedded"])
    return _side_by_side(
        settings.ranks, max(1, min(needed, cores - _CORES_LEFT, MOST_SIDE_BY_SIDE))
    )


def _side_by_side(ranks: int, count: int) -> LabTopology:
    if ranks > LARGEST_FANOUT:
        raise ArgumentsError(
            f"{ranks} ranks do not fit {count} switches side by side, each of which has all ranks "
            f"and {LARGEST_FANOUT} at most: leave switches out, for a tree"
        )
    return LabTopology.side_by_side(ranks, count)
