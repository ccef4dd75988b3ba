# SPDX-License-Identifier: Apache-2.0
"""The switches for a number of ranks on one interface: one, several side by side, or a tree."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from string import ascii_lowercase

from p4reduce.wire.format import MAX_WORLD_SIZE
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

_CORES_LEFT = 1  # for the controller, and whatever else the host does
_TREE = re.compile(r"([0-9]{1,4})x([0-9]{1,4})")


@dataclass(frozen=True)
class Arrangement:
    """The switches of a network.

    Attributes:
        names: of the switches that ranks are at: one, those side by side, or a tree's leaves.
        ranks: how many each of them has.
        root: the name of the switch above them; "" where they are not a tree.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    root: str = ""

    @property
    def text(self) -> str:
        """The arrangement for people."""
        if self.root:
            return f"a root switch and {len(self.names)} leaves"
        return "one switch" if len(self.names) == 1 else f"{len(self.names)} switches side by side"


def arrange(settings: DeploySettings, cores: int | None = None) -> Arrangement:
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
        return _given_tree(settings)
    if settings.switches:
        return _side_by_side(settings.ranks, settings.switches)
    if settings.ranks > LARGEST_FANOUT:
        leaf, leaves = tree_fanouts(settings.ranks)
        return _tree(settings.ranks, leaf, leaves)
    if not settings.is_remote:
        return _side_by_side(settings.ranks, 1)
    cores = usable_cpus() if cores is None else cores
    link = PlannedLink(settings.link_rate or link_rate(settings.host))
    needed = switches_for_an_interface(link, SWITCHES["embedded"])
    return _side_by_side(
        settings.ranks, max(1, min(needed, cores - _CORES_LEFT, MOST_SIDE_BY_SIDE))
    )


def _side_by_side(ranks: int, count: int) -> Arrangement:
    if ranks > LARGEST_FANOUT:
        raise ArgumentsError(
            f"{ranks} ranks do not fit {count} switches side by side, each of which has all ranks "
            f"and {LARGEST_FANOUT} at most: leave switches out, for a tree"
        )
    names = ("switch",) if count == 1 else tuple(ascii_lowercase[:count])
    return Arrangement(names, (ranks,) * count)


def _given_tree(settings: DeploySettings) -> Arrangement:
    match = _TREE.fullmatch(settings.tree)
    if match is None:
        raise ArgumentsError(
            f"tree {settings.tree!r} is not a shape like 2x4, two leaves of four ranks"
        )
    leaves, leaf = map(int, match.groups())
    if not 1 <= leaves <= LARGEST_FANOUT or not 1 <= leaf <= LARGEST_FANOUT:
        raise ArgumentsError(f"tree {settings.tree}: a switch has 1 to {LARGEST_FANOUT} children")
    if not leaf * (leaves - 1) < settings.ranks <= leaf * leaves <= MAX_WORLD_SIZE:
        raise ArgumentsError(
            f"tree {settings.tree} has {leaf * leaves} ranks, and {settings.ranks} were asked for"
        )
    return _tree(settings.ranks, leaf, leaves)


def _tree(ranks: int, leaf: int, leaves: int) -> Arrangement:
    leaves = min(leaves, math.ceil(ranks / leaf))
    each = tuple(min(leaf, ranks - leaf * number) for number in range(leaves))
    return Arrangement(tuple(f"leaf-{1 + number}" for number in range(leaves)), each, "root")
