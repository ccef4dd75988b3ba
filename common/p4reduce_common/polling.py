# SPDX-License-Identifier: Apache-2.0
"""Attempts that are repeated until one succeeds or a time is up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Pauses of `first` to `longest` seconds, each `factor` times as long as the one before.

    It yields them for ever. Who takes one sleeps in its own way: a thread, or an event loop.
    """

    first: float
    longest: float
    factor: float = 2.0

    def __iter__(self) -> Iterator[float]:
        pause = self.first
        while True:
            yield pause
            pause = min(pause * self.factor, self.longest)


def attempts(seconds: float, pause: float | Backoff) -> Iterator[float]:
    """Yield the seconds that are left: at once, after each pause, and a last time at the end.

    Args:
        seconds: for all attempts; 0 allows one.
        pause: seconds between two.
    """
    ends = time.monotonic() + seconds
    left = seconds
    pauses = iter(pause) if isinstance(pause, Backoff) else itertools.repeat(pause)
    while left > 0:
        yield left
        time.sleep(max(0.0, min(next(pauses), ends - time.monotonic())))
        left = ends - time.monotonic()
    yield 0.0


def holds_within(seconds: float, condition: Callable[[], object], pause: float) -> bool:
    """Return whether a condition holds now or at one of the looks within that many seconds."""
    return any(condition() for _ in attempts(seconds, pause))


def retry(
    attempt: Callable[[float], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    seconds: float,
    pause: float,
    passes: Callable[[Any], bool] = lambda error: True,
) -> T:
    """Return what an attempt returns, which is repeated after errors that may be gone later.

    Args:
        attempt: called with the seconds that are left, at least those of a pause.
        errors: those that may be gone; any other is raised at once.
        seconds: for all attempts. Once there is no time for a pause, the error is raised.
        pause: seconds between two.
        passes: whether one of these errors may be gone; if not, it is raised.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            return attempt(max(ends - time.monotonic(), pause))
        except errors as error:
            if time.monotonic() + pause >= ends or not passes(error):
                raise
        time.sleep(pause)
