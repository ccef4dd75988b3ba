# SPDX-License-Identifier: Apache-2.0
"""What an exploration has found, and the exploration of what can only be done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Transition = tuple[Any, Any, Any]
"""A state, an event, the state that follows."""

E = TypeVar("E")


class Violation(Exception):  # noqa: N818 - what the check looks for, not what went wrong with it
    """An invariant does not hold. The text says which one, and how."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass
class Found(Generic[E]):
    """What was found.

    Attributes:
        complete: whether all states within the bounds were visited; False after a violation.
        states, transitions: how many.
        depth: events on the longest of the shortest ways to a state.
        seconds: it took.
        violation, trace: what is wrong, and a shortest way to it.
    """

    complete: bool = False
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    violation: Violation | None = None
    trace: tuple[E, ...] = ()

    def describe(self) -> str:
        """Return a counterexample, for people."""
        steps = [f"{number:4}  {event}" for number, event in enumerate(self.trace, 1)]
        return "\n".join([*steps, f"WRONG {self.violation}"])


@dataclass
class Walked(Found[str]):
    """The same of states that have a table.

    Attributes:
        table: from each state, by each event.
        walked: the table's transitions that were taken.
    """

    table: Mapping[Any, Mapping[Any, Any]] = field(default_factory=dict)
    walked: set[Transition] = field(default_factory=set)

    @property
    def missing(self) -> set[Transition]:
        """The table's transitions that were not taken."""
        every = {(a, e, b) for a, moves in self.table.items() for e, b in moves.items()}
        return every - self.walked


class World(Protocol[E]):
    """What happens step by step, and cannot be copied."""

    def events(self) -> Sequence[E]:
        """Return all that can happen now."""

    def do(self, event: E, /) -> None:
        """Let it happen. Raises Violation."""

    def state(self) -> Hashable:
        """Return what distinguishes this state from others."""


W = TypeVar("W", bound=World[Any])


def explore_by_doing(
    found: Found[E],
    begin: Callable[[], W],
    limit: int,
    look: Callable[[W], None] | None = None,
) -> None:
    """Visit all states and check them, shortest ways first.

    A state is kept as the events that lead to it, and reached again by doing them once more.

    Args:
        found: gets what is found.
        begin: returns a world at its beginning.
        limit: states to stop at.
        look: called in each state with a world of its own. Raises Violation.
    """

    def after(way: tuple[E, ...]) -> W:
        world = begin()
        for event in way:
            world.do(event)
        return world

    began = time.perf_counter()
    known = {begin().state()}
    ways: list[tuple[E, ...]] = [()]
    try:
        for way in ways:  # grows meanwhile
            found.depth, found.trace = len(way), way
            if look is not None:
                look(after(way))
            world = after(way)
            for number, event in enumerate(world.events()):
                found.transitions += 1
                found.trace = (*way, event)
                if number:
                    world = after(way)
                world.do(event)
                if (state := world.state()) not in known:
                    known.add(state)
                    ways.append(found.trace)
            if len(ways) > limit:
                break
        else:
            found.complete = True
        found.trace = ()
    except Violation as violation:
        found.violation = violation
    found.states = len(ways)
    found.seconds = time.perf_counter() - began
