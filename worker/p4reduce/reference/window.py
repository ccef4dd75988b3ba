# SPDX-License-Identifier: Apache-2.0
"""How many slots may have a contribution under way at once: the rules.

docs/protocol.md, "Window", says why that never stops a job, and refers to this for the rules. What
ranks do is in `csrc/worker/window.c`, which tests compare with this. There a timer that is put off
ends the doubling, too. The planner's model uses this, and has no timers.
"""

from __future__ import annotations

import math

from p4reduce.statistics import RoundTrips

INITIAL = 32
"""Slots that may at first."""

FLOOR = 4
"""Slots that always may."""

TARGET = 0.02
"""Seconds that a standing queue may take without anything being lost in it."""

_LEAST_RESULTS = 32  # in a period, for its figures to mean something
_TROUBLED = 1 / 4  # share of the rounds
_QUEUEING = 4  # times as long as without a queue
_CAREFULLY = 8  # by an eighth a period


class Window:
    """A number of slots, between `FLOOR` and all that the job has.

    A period is as many results as the window holds, about a round trip. At its end, with a standing
    queue:

    - Over a quarter of this rank's rounds were repeated for its own sake: the window is halved.
    - The round trip is above `TARGET`: it becomes rate * `TARGET` (Little's law), at least half.
    - The round trip is above half of `TARGET`: it stays.
    - Otherwise, or without a queue, it grows: twofold, or by an eighth once it was made smaller.

    After it was made smaller, the next period is passed over, because its frames were sent before.

    A queue is taken to be standing if the typical round trip is more than 4 times as long as both
    the shortest one and the longest time for which nothing came. The latter distinguishes it from
    ranks that pause: those have results come in bursts, and need as large a window as there is.

    Args:
        slots: of the job.
        round_trips: what was measured.
    """

    def __init__(self, slots: int, round_trips: RoundTrips) -> None:
        self.size = min(slots, INITIAL)
        self._slots = slots
        self._floor = min(slots, FLOOR)
        self._round_trips = round_trips
        self._growth = 1
        self._settling = False
        self._results = 0
        self._troubled = 0
        self._latest = math.inf
        self._silence = 0.0

    def heard(self, now: float) -> None:
        """Note that the switch has sent something."""
        self._silence = max(self._silence, now - self._latest)
        self._latest = now

    def completed(self, results: int, troubled: int) -> None:
        """Note complete rounds, and how many of them had losses."""
        self._results += results
        self._troubled += troubled
        if self._results >= self.size and self._results >= _LEAST_RESULTS:
            self._end_period()

    def idle(self) -> None:
        """Note that nothing is in flight, so silence means nothing."""
        self._latest = math.inf

    def _end_period(self) -> None:
        typical = self._round_trips.typical(self._results)
        troubled = self._troubled > _TROUBLED * self._results
        # It takes longer to find out whether it is a queue, and mostly makes no difference.
        queue = typical if (troubled or typical > TARGET / 2) and self._queues(typical) else 0.0
        if self._settling:
            self._settling = False
        elif queue and troubled:
            self._shrink(0.5)
        elif queue > TARGET:
            self._shrink(max(TARGET / queue, 0.5))
        elif queue <= TARGET / 2:
            self.size = min(self._slots, self.size + max(1, self.size // self._growth))
        self._results = self._troubled = 0
        self._silence /= 2  # pauses do not come in every period

    def _queues(self, typical: float) -> bool:
        """Whether a round trip as long as that is queueing for the most part."""
        shortest = self._round_trips.shortest()
        return typical > _QUEUEING * max(shortest, self._silence)

    def _shrink(self, factor: float) -> None:
        self.size = max(self._floor, int(self.size * factor))
        self._growth = _CAREFULLY
        self._settling = True
