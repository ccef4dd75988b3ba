# SPDX-License-Identifier: Apache-2.0
"""When to ask again: docs/protocol.md, "Timers" and "Round trips"."""

from __future__ import annotations

_FIRST_TIMEOUT, _FLOOR, _CEILING = 0.05, 0.01, 0.25  # seconds
_LOCAL_FLOOR = 0.1  # the floor where frames go by memory or by a Unix socket, which lose none


class Timeout:
    """RFC 6298: how many seconds to wait for a result before asking again."""

    def __init__(self) -> None:
        self.seconds = _FIRST_TIMEOUT
        self._floor = _FLOOR
        self._smoothed: float | None = None
        self._variation = 0.0

    def measured(self, round_trip: float) -> None:
        """Take a sample: RFC 6298, sections 2.2 and 2.3."""
        if self._smoothed is None:
            self._smoothed, self._variation = round_trip, round_trip / 2
        else:
            self._variation += (abs(self._smoothed - round_trip) - self._variation) / 4
            self._smoothed += (round_trip - self._smoothed) / 8
        self.seconds = min(max(self._smoothed + 4 * self._variation, self._floor), _CEILING)

    def after(self, tries: int) -> float:
        """Return the timeout after repetitions: RFC 6298, section 5.5, doubles it each time."""
        return min(self.seconds * 2.0 ** min(tries, 30), _CEILING)

    def use_local_floor(self) -> None:
        """Use the longer timeout of a lossless link: a missing answer is only late."""
        self._floor = _LOCAL_FLOOR
        self.seconds = max(self.seconds, _LOCAL_FLOOR)
