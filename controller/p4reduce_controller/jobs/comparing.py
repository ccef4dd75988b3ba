# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job called when they disagreed, and where the calls differ."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.request_checks import printable

WAIT = 2.0  # seconds from the first rank's word on; all are told of a mismatch at once
MOST_WAITS = 8  # calls of one rank that wait at once: it may call again before the last has ended
MOST_CALLS = 32
MOST_PIECES = 2048
LONGEST_TEXT = 400  # characters


@dataclass(frozen=True)
class Called:
    """A call of a collective, as text that is equal on ranks that agree."""

    text: str
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, text: str, pieces: Iterable[str]) -> Called:
        """Read a rank's report, cut to what other ranks may see."""
        shown = tuple(printable(piece, LONGEST_TEXT) for piece in list(pieces)[:MOST_PIECES])
        return cls(printable(text, LONGEST_TEXT), shown)


class Comparison:
    """The reports of one life of a job. Its ranks reduce nothing more after it.

    Args:
        ends: the latest time of the answer, by the caller's clock.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.all_reported = asyncio.Event()  # set when all ranks that still take part have
        self._calls: dict[int, dict[int, Called]] = {}
        self._asking: Counter[int] = Counter()

    @contextlib.contextmanager
    def asked_by(self, rank: int, who: str) -> Iterator[None]:
        """A rank starts to wait. Raises JobRefusedError, which names `who`, if too many wait
        already."""
        if self._asking[rank] >= MOST_WAITS:
            raise JobRefusedError(
                Cause.EXHAUSTED, f"{MOST_WAITS} calls of {who} wait already; one is enough"
            )
        self._asking[rank] += 1
        try:
            yield
        finally:
            self._asking[rank] -= 1

    def add(self, rank: int, calls: Iterable[tuple[int, Called]]) -> None:
        """Store a rank's calls by their place in the job's order. Only its first report counts."""
        self._calls.setdefault(rank, dict(list(calls)[:MOST_CALLS]))

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks that have not reported."""
        return sorted(set(ranks) - self._calls.keys())

    def complete(self, ranks: Iterable[int]) -> bool:
        """Whether all remaining ranks have reported."""
        return self._calls.keys() >= set(ranks)

    def differing_calls(self) -> list[tuple[int, Called, list[int]]]:
        """Return the calls at the first place where ranks differ, and the ranks of each.

        The call of most ranks comes first. Empty if the reports do not differ.
        """
        for place in sorted({place for calls in self._calls.values() for place in calls}):
            ranks: dict[Called, list[int]] = {}
            for rank, calls in sorted(self._calls.items()):
                if place in calls:
                    ranks.setdefault(calls[place], []).append(rank)
            if len(ranks) > 1:
                most_first = sorted(ranks.items(), key=lambda one: -len(one[1]))
                return [(place, called, who) for called, who in most_first]
        return []
