# SPDX-License-Identifier: Apache-2.0
"""Turns a control into nested blocks again, for the generator.

A control is a graph of tables and conditions, which p4c made from structured source. The branches
of an `if` join at its immediate post-dominator, the first node that all paths from it reach. If
paths join elsewhere, as with p4c's `return`, the nodes in between are written more than once, up to
a limit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from p4reduce_switch.program import ir
from p4reduce_switch.program.graphs import post_dominators, topological_order

DEEPEST = 60  # blocks; Python's limit is 100

Proceed = Callable[["str | None"], None]
"""Writes how to go on to a node (None: the end)."""


class TooLargeError(Exception):
    """The control cannot be written as nested blocks."""


class ControlWalk(ABC):
    """Writes a control's nodes as nested blocks. The generator decides what a node becomes."""

    def __init__(self, control: ir.Control) -> None:
        self._control = control
        self._order = topological_order(control)
        self._join = post_dominators(control, self._order)
        self._budget = 0

    @property
    @abstractmethod
    def _depth(self) -> int:
        """How many blocks what is written now lies within."""

    @abstractmethod
    def _branch(self, node: ir.Branch, join: str | None) -> None:
        """Write an `if` and its ways as far as the node where they join."""

    @abstractmethod
    def _call(self, node: ir.DirectCall) -> None:
        """Write the action that a node runs."""

    @abstractmethod
    def _table(self, table: ir.ApplyTable, proceed: Proceed) -> None:
        """Look up, run the action, and continue by hit or miss or by action."""

    def _nest(self) -> None:
        """Write all of it. Raises TooLargeError, with a part of it written."""
        self._budget = 4 * len(self._order) + 16
        self._region(self._control.start, None)

    def _region(self, name: str | None, stop: str | None) -> None:
        """The nodes from `name` until `stop`, which comes after them."""
        while name != stop:
            assert name is not None
            self._budget -= 1
            if self._budget < 0 or self._depth > DEEPEST:
                raise TooLargeError
            node = self._control.nodes[name]
            join = self._join[name]
            if isinstance(node, ir.Branch):
                self._branch(node, join)
            elif isinstance(node, ir.DirectCall):
                self._call(node)
            else:
                self._table(node, partial(self._region, stop=join))
            name = join

    def _go_inside(
        self, table: ir.ApplyTable, proceed: Proceed, action: int | None, *, hit: bool
    ) -> None:
        """Continue within a branch, unless all branches go on to the same node."""
        if len(table.successors) > 1:
            self._after(table, proceed, action, hit=hit)

    def _after(
        self, table: ir.ApplyTable, proceed: Proceed, action: int | None, *, hit: bool
    ) -> None:
        if table.next_by_action is None:
            proceed(table.next_hit if hit else table.next_miss)
        elif action is not None:
            proceed(table.next_by_action[action])
