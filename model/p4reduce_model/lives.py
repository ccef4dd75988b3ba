# SPDX-License-Identifier: Apache-2.0
"""What was found when the states of a table were explored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from p4reduce_model.violation import Violation

Transition = tuple[Any, Any, Any]
"""A state, an event, the state that follows."""


@dataclass
class Lives:
    """What was found.

    Attributes:
        table: from each state, by each event.
        states, steps, depth: how many; the last: events on the longest shortest way to a state.
        complete: whether all states within the bounds were visited.
        walked: the table's transitions that were taken.
        violation, trace: what is wrong, and a shortest way to it.
    """

    table: Mapping[Any, Mapping[Any, Any]]
    states: int = 0
    steps: int = 0
    depth: int = 0
    complete: bool = False
    seconds: float = 0.0
    walked: set[Transition] = field(default_factory=set)
    violation: Violation | None = None
    trace: tuple[str, ...] = ()

    @property
    def missing(self) -> set[Transition]:
        """The table's transitions that were not taken."""
        return {
            (a, e, b) for a, moves in self.table.items() for e, b in moves.items()
        } - self.walked
