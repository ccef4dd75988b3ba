# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job called when they did not agree: which rank reported what, and where it
differs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p4reduce_controller.jobs.refusals import Cause, RefusedError
from p4reduce_controller.jobs.request_checks import printable

WAIT = 2.0  # seconds from the first rank's word on; all are told of a mismatch at once
MOST_WAITS = 8  # of a rank at once; a repeated one may overlap with its forerunner
MOST_CALLS = 32
MOST_PIECES = 2048
LONGEST_TEXT = 400  # characters


@dataclass(frozen=True)
class Called:
    """One call of a collective, in words that are the same on ranks that agree."""

    text: str
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, text: str, pieces: Iterable[str]) -> Called:
        """Take in what a rank says: so much of it as others may be shown."""
        shown = tuple(printable(piece, LONGEST_TEXT) for piece in list(pieces)[:MOST_PIECES])
        return cls(printable(text, LONGEST_TEXT), shown)


class Comparison:
    """Of one life of a job; there is one, as its ranks reduce nothing more after it.

    Args:
        ends: when it is answered at the latest, by the caller's clock.
    """

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.told = asyncio.Event()  # by all ranks that still take part
        self._calls: dict[int, dict[int, Called]] = {}
        self._asking: Counter[int] = Counter()

    @contextlib.contextmanager
    def asked_by(self, rank: int, who: str) -> Iterator[None]:
        """A call of a rank waits. Raises RefusedError, which says `who`, if enough do already."""
        if self._asking[rank] >= MOST_WAITS:
            raise RefusedError(
                Cause.EXHAUSTED, f"{MOST_WAITS} calls of {who} wait already; one is enough"
            )
        self._asking[rank] += 1
        try:
            yield
        finally:
            self._asking[rank] -= 1

    def add(self, rank: int, calls: Iterable[tuple[int, Called]]) -> None:
        """A rank says its calls by their place in the job's order; the first time counts."""
        self._calls.setdefault(rank, dict(list(calls)[:MOST_CALLS]))

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Return the job's ranks that have reported nothing."""
        return sorted(set(ranks) - self._calls.keys())

    def complete(self, ranks: Iterable[int]) -> bool:
        """Whether all ranks that still take part have reported."""
        return self._calls.keys() >= set(ranks)

    def callings(self) -> list[tuple[int, Called, list[int]]]:
        """Return what was called at the first place where ranks differ, and by which ones.

        What most ranks called comes first. Empty if their reports do not differ.
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
