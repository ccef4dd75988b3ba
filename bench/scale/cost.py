# SPDX-License-Identifier: Apache-2.0
"""What a contribution costs in a large job, beside what it costs in a small one.

The speed of a virtual machine changes by half within minutes, and a small job takes one
second. So small ones are run again and again while the large one is under way, in turns with it,
and both have met the same machine. Turns take seconds, so that a small job does not begin each of
them with the large one's data in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.scale.ranks import Tensor
from bench.scale.simulation import Outcome, Simulation

EVERY = 3.0
"""Seconds of the large job's processor time for each of the small ones."""


@dataclass(frozen=True)
class Cost:
    """A job, and the small ones that it was in turns with; at least one."""

    large: Outcome
    small: tuple[Outcome, ...]

    @property
    def by_sent(self) -> float:
        """How many times as much a contribution costs, by those that were sent."""
        return self.large.microseconds / self._mean(lambda one: one.sent)

    @property
    def by_needed(self) -> float:
        """The same by those that there would be if nothing were repeated."""
        return self.large.microseconds_needed / self._mean(lambda one: one.contributions)

    def _mean(self, number: Callable[[Outcome], float]) -> float:
        return 1e6 * sum(one.run_cpu for one in self.small) / sum(map(number, self.small))


def in_turns(
    large: Simulation, small: Callable[[int], Simulation], tensors: Sequence[Tensor]
) -> Cost:
    """Run a job, and small ones between its steps: `small` makes the one of a number, from 0 on."""
    beside: list[Outcome] = []
    for seconds in large.steps(tensors):
        if seconds >= EVERY * len(beside):
            beside.append(small(len(beside)).run(tensors))
    return Cost(large.outcome(), tuple(beside))
