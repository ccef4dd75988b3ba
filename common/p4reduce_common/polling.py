# SPDX-License-Identifier: Apache-2.0
"""Attempts that are repeated until one succeeds or a time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def attempts(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that are left: at once, after each pause, and a last time at the end.

    Args:
        seconds: for all attempts; 0 allows one.
        pause: seconds between two.
    """
    ends = time.monotonic() + seconds
    left = seconds
    while left > 0:
        yield left
        time.sleep(max(0.0, min(pause, ends - time.monotonic())))
        left = ends - time.monotonic()
    yield 0.0


def holds_within(seconds: float, condition: Callable[[], object], pause: float) -> bool:
    """Return whether a condition holds now or at one of the looks within that many seconds."""
    return any(condition() for _ in attempts(seconds, pause))
