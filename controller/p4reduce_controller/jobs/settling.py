# SPDX-License-Identifier: Apache-2.0
"""What the remaining ranks of a job say to each other after it lost one, step by step.

The controller only passes on what they say. Each rank of a step gets the same: what is published
does not change any more. So all of them draw the same conclusions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from p4reduce_controller.jobs.refusals import Cause, JobRefusedError


@dataclass(eq=False)
class Step:
    """One step: what each rank has said, and whether all have."""

    said: dict[int, bytes] = field(default_factory=dict)
    published: asyncio.Event = field(default_factory=asyncio.Event)


class Settlement:
    """The steps of one life of a job."""

    def __init__(self) -> None:
        self._number = 0
        self._before = self._step = Step()
        self._passed: set[int] = set()

    def say(self, rank: int, number: int, said: bytes) -> Step:
        """Note what a rank says in a step. Only the first time counts.

        Raises:
            JobRefusedError: another step is next.
        """
        if number == self._number + 1 and self._step.published.is_set():
            self._number, self._before, self._step = number, self._step, Step()
        step = {self._number: self._step, self._number - 1: self._before}.get(number)
        if step is None or (step.published.is_set() and rank not in step.said):
            raise JobRefusedError(
                Cause.WRONG_STATE,
                f"rank {rank} is at step {number} of settling its job, and the others are at step "
                f"{self._number}",
            )
        step.said.setdefault(rank, said)
        return step

    def pass_on(self, rank: int) -> None:
        """Note that a rank takes part in no further step."""
        self._passed.add(rank)

    def awaited(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks that have not said anything in the present step."""
        return sorted(set(ranks) - self._step.said.keys() - self._passed)

    def advance(self, ranks: Iterable[int]) -> None:
        """Publish the present step if all of the remaining ranks have spoken."""
        if self._step.said and not self.awaited(ranks):
            self._step.published.set()
