# SPDX-License-Identifier: Apache-2.0
"""Calls that the data plane makes at a later time, between two packets."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Monotonic time in nanoseconds."""


class Timers:
    """Scheduled calls. Used by the data plane's thread only.

    Args:
        clock: returns the time in nanoseconds.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self.clock = clock
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Call `action` after `delay_ns`."""
        heapq.heappush(self._calls, (self.clock() + delay_ns, next(self._numbers), action))

    def run_due(self) -> None:
        """Make the calls that are due."""
        while self._calls and self._calls[0][0] <= self.clock():
            heapq.heappop(self._calls)[2]()

    def wait_s(self, most: float) -> float:
        """Return the seconds until the next call, at most `most`."""
        if not self._calls:
            return most
        return min(most, max(0.0, (self._calls[0][0] - self.clock()) / 1e9))
