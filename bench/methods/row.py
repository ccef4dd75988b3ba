# SPDX-License-Identifier: Apache-2.0
"""A row of the scorecard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.methods.single import TARGET, Way
from bench.methods.tasks import Task

ROUND_TRIP = 1e-3  # seconds
TRIPS_A_ROUND = 2
BANDWIDTH = 1e7  # bit/s


@dataclass(frozen=True)
class Row:
    """A method on a task; `scorecard.py` says what the columns are."""

    method: str
    task: str
    ranks: int
    iterations: int
    gap: float
    uploads: int
    bytes_up: int
    bytes_down: int
    rounds: int
    seconds: float

    @property
    def arrived(self) -> bool:
        """Whether the gap is as small as it was to be."""
        return self.gap <= TARGET

    @classmethod
    def of(cls, method: str, task: Task, way: Way) -> Row:
        """Return the row of a run."""
        rounds = max(way.rounds)
        return cls(
            method,
            task.name,
            task.ranks,
            way.steps,
            way.gap,
            sum(way.uploads),
            sum(way.up),
            sum(way.down),
            rounds,
            modelled_seconds(rounds, way.up, way.down),
        )

    def cells(self) -> list[str]:
        """Return it as text; a gap that is too large is in parentheses."""
        gap = f"{self.gap:.2g}"
        return [
            self.task,
            self.method,
            f"{self.iterations:,}",
            gap if self.arrived else f"({gap})",
            f"{self.uploads:,}",
            f"{self.bytes_up / 1e6:.3g}",
            f"{self.bytes_down / 1e6:.3g}",
            f"{self.rounds:,}",
            f"{self.seconds:.3g}",
        ]


HEAD = ("task", "method", "steps", "gap", "uploads", "MB up", "MB down", "rounds", "seconds")


def modelled_seconds(rounds: int, up: Sequence[int], down: Sequence[int]) -> float:
    """Return how long it takes; bytes are by rank."""
    busiest = max(u + d for u, d in zip(up, down, strict=True))
    return rounds * TRIPS_A_ROUND * ROUND_TRIP + 8 * busiest / BANDWIDTH
