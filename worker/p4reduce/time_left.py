# SPDX-License-Identifier: Apache-2.0
"""The time of a call that waits for several things, one after the other."""

from __future__ import annotations

import time

from p4reduce.checks import check_timeout

_LEAST_TIMEOUT = 1e-3  # seconds; lets a call fail that has none left


class TimeLeft:
    """What is left of a call's time, in seconds, for one collective after the other.

    Args:
        timeout: from the first collective on, which gets all of it.
    """

    def __init__(self, timeout: float) -> None:
        check_timeout(timeout)
        self._timeout = timeout
        self._start: float | None = None

    def __call__(self) -> float:
        """Return it; a little if there is none."""
        now = time.monotonic()
        if self._start is None:
            self._start = now
        return max(self._timeout - (now - self._start), _LEAST_TIMEOUT)
