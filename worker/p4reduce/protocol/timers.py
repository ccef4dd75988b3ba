# SPDX-License-Identifier: Apache-2.0
"""How long to wait for a result before asking again: RFC 6298, for simulations.

50 ms at first, then between 10 and 250 ms by the round trips, twice as long after each time. What
ranks do is in `csrc/worker/timers.c`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.statistics import RoundTrips

_ALPHA = 1 / 8
_BETA = 1 / 4
_VARIATIONS = 4.0


class RetransmissionTimeout:
    """An estimate of the round trip, and the timeout that follows from it, in seconds.

    All slots of a job share one path and one estimate. Samples must be unambiguous (RFC 6298,
    section 3), which the caller sees to. The gains of the RFC are meant for one measurement a
    round trip. With many slots there are many, so the longest of each round trip's time counts
    (RFC 7323, appendix G, has the same concern).

    Args:
        initial: until there is a sample. The network is a single switch, so much less than the
            second that the RFC asks of TCP.
        floor: at least; pauses by the scheduler of some milliseconds are no losses.
        ceiling: at most, after backing off, unless round trips typically take half of that.
    """

    def __init__(self, initial: float = 0.05, floor: float = 0.01, ceiling: float = 0.25) -> None:
        self.floor = floor
        self.ceiling = self._least_ceiling = ceiling
        self.seconds = initial
        self._smoothed = 0.0
        self._variation = 0.0
        self._longest = 0.0
        self._window_ends = -np.inf

    def measured(self, round_trip: float, now: float) -> None:
        """Take a measurement into account, at the time `now`."""
        self._longest = max(self._longest, round_trip)
        if now >= self._window_ends:
            self._sample(self._longest)
            self._longest = 0.0
            self._window_ends = now + self._smoothed

    def typical(self, round_trip: float) -> None:
        """Take into account how long the greater part of round trips takes at least."""
        self.ceiling = max(self._least_ceiling, 2 * round_trip)

    def _sample(self, round_trip: float) -> None:
        """See RFC 6298, 2.2 and 2.3."""
        if self._smoothed == 0.0:
            self._smoothed = round_trip
            self._variation = round_trip / 2
        else:
            self._variation += _BETA * (abs(self._smoothed - round_trip) - self._variation)
            self._smoothed += _ALPHA * (round_trip - self._smoothed)
        timeout = self._smoothed + _VARIATIONS * self._variation
        self.seconds = min(max(timeout, self.floor), self.ceiling)

    def after(self, retransmissions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the timeouts after so many retransmissions of a packet: doubled by each."""
        return np.minimum(self.seconds * np.exp2(np.minimum(retransmissions, 30)), self.ceiling)


class Estimates:
    """What simulations measure, for `window.Window`.

    Attributes:
        timeout: the estimate behind a rank's timers.
        round_trips: what was measured.
    """

    def __init__(self) -> None:
        self.timeout = RetransmissionTimeout()
        self.round_trips = RoundTrips()
