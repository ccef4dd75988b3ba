# SPDX-License-Identifier: Apache-2.0
"""Controls as graphs, for generators: order, and where branches join."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping

from p4reduce_switch.program import ir


def topological_order(control: ir.Control) -> list[str]:
    """Return the reachable nodes in topological order."""
    reached: dict[str, ir.Node] = {}
    pending = [control.start]
    while pending:
        name = pending.pop()
        if name is not None and name not in reached:
            reached[name] = control.nodes[name]
            pending += reached[name].successors
    graph = {name: [s for s in node.successors if s is not None] for name, node in reached.items()}
    return list(graphlib.TopologicalSorter(graph).static_order())[::-1]


def post_dominators(control: ir.Control, order: list[str]) -> Mapping[str, str | None]:
    """Return each node's immediate post-dominator; None is the end (Cooper, Harvey, Kennedy
    2001)."""
    position: dict[str | None, int] = {name: index for index, name in enumerate(order)}
    position[None] = len(order)
    join: dict[str, str | None] = {}

    def common(left: str | None, right: str | None) -> str | None:
        while left != right:
            if position[left] < position[right]:
                assert left is not None
                left = join[left]
            else:
                assert right is not None
                right = join[right]
        return left

    for name in reversed(order):
        first, *others = control.nodes[name].successors
        for other in others:
            first = common(first, other)
        join[name] = first
    return join
