# SPDX-License-Identifier: Apache-2.0
"""Who is joined to whom in a tree of equal switches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from p4reduce.wire.rank_sets import Child, Level

from bench.scale.links import Place


@dataclass(frozen=True)
class Shape:
    """A tree in which all switches of a level have as many children.

    Nodes are numbered from 0: first the ranks, then the leaves, then each level up to the root.
    Children are at a switch's ports from 1 on, its parent at the next one after them.

    Attributes:
        fanouts: children of a switch, from the leaves up; (64,) is a single switch.
    """

    fanouts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.fanouts or not all(1 <= fanout <= 64 for fanout in self.fanouts):
            raise ValueError(f"{self.fanouts}: each switch has 1 to 64 children")

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(self.fanouts)

    @property
    def levels(self) -> list[range]:
        """The nodes of each level, the ranks' first."""
        found, start, count = [range(self.ranks)], self.ranks, self.ranks
        for fanout in self.fanouts:
            count //= fanout
            found.append(range(start, start + count))
            start += count
        return found

    @property
    def root(self) -> int:
        """The node of the switch on top."""
        return self.levels[-1][0]

    def _level(self, node: int) -> int:
        return next(level for level, nodes in enumerate(self.levels) if node in nodes)

    def parent(self, node: int) -> Place:
        """The switch above a node, and the port there that it is at."""
        if node >= self.root:
            raise ValueError(f"node {node} has no parent")
        level = self._level(node)
        number, port = divmod(node - self.levels[level].start, self.fanouts[level])
        return Place(self.levels[level + 1][number], port + 1)

    def children(self, switch: int) -> list[int]:
        """The nodes below a switch, by their ports."""
        level = self._level(switch)
        fanout = self.fanouts[level - 1]
        first = (switch - self.levels[level].start) * fanout
        return list(self.levels[level - 1][first : first + fanout])

    def uplink(self, node: int) -> int:
        """The port by which a node reaches its parent."""
        return 0 if node < self.ranks else len(self.children(node)) + 1

    def ends(self) -> dict[Place, Place]:
        """For each end of a link, the other one."""
        ends: dict[Place, Place] = {}
        for node in range(self.root):
            below, above = Place(node, self.uplink(node)), self.parent(node)
            ends[below], ends[above] = above, below
        return ends

    def ranks_below(self, node: int) -> range:
        """The ranks whose sums a node sends up: itself, if it is one."""
        first = last = node
        while first >= self.ranks:
            first, last = self.children(first)[0], self.children(last)[-1]
        return range(first, last + 1)

    def levels_above(self, leaf: int) -> tuple[Level, ...]:
        """A leaf and the switches above it, and who their children are, as workers know them."""
        found, node = [], leaf
        while True:
            children = tuple(
                Child(tuple(self.ranks_below(child)), name_of(child) if child >= self.ranks else "")
                for child in self.children(node)
            )
            found.append(Level(name_of(node), children))
            if node == self.root:
                return tuple(found)
            node = self.parent(node).node


def name_of(node: int) -> str:
    """A switch's name; names are in the order of nodes."""
    return f"s{node:06}"
