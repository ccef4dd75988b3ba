# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a job needs before it begins: until when, and what is said meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from p4reduce.errors import ClosedError
from p4reduce.latch import Latch

log = logging.getLogger(__name__)

_FIRST_WORD = 2.0  # seconds; what is there sooner than that is not worth one
_EVERY = 5.0  # seconds


class Waiting:
    """How long `init` or `reform` may take, and what keeps them waiting.

    Args:
        who: for the log.
        deadline: on the monotonic clock.
        cancelled: nobody wants it any more.
        check: raises what makes it vain; called again and again.
    """

    def __init__(
        self,
        who: str,
        deadline: float,
        cancelled: Latch,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.deadline = deadline
        self._check = check
        self._who = who
        self._cancelled = cancelled
        self._started = time.monotonic()
        self._next_word = self._started + _FIRST_WORD

    @property
    def left(self) -> float:
        """Seconds until the deadline; never quite none, so that each call may fail by itself."""
        return max(self.deadline - time.monotonic(), 0.1)

    def check(self) -> None:
        """Raise ClosedError if nobody waits any more, or what makes it vain to wait."""
        if self._cancelled.is_set():
            raise ClosedError("nobody waits for this any more")
        self._check()

    def may_wait(self, seconds: float) -> bool:
        """Whether so long a pause leaves time for a further attempt."""
        return time.monotonic() + seconds < self.deadline

    def pause(self, seconds: float, what: object) -> None:
        """Wait a little for what is missing; say so every few seconds."""
        self.say(what)
        self._cancelled.wait(seconds)
        self.check()

    def say(self, what: object) -> None:
        """Log what is waited for, if it is time for a word."""
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + _EVERY
            log.warning(
                "%s has waited %.3g s, and goes on for %.3g s at most: %s",
                *(self._who, now - self._started, max(self.deadline - now, 0.0), what),
            )
