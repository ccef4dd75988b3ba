# SPDX-License-Identifier: Apache-2.0
"""Waiting until a job can start: the deadline, and the log messages meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from p4reduce.errors import ClosedError
from p4reduce.latch import Latch

log = logging.getLogger(__name__)

_FIRST_WORD = 2.0  # seconds; what is there sooner than that is not worth one
_EVERY = 5.0  # seconds
_PAUSE = 0.1  # seconds between two attempts

T = TypeVar("T")


class Waiting:
    """How long `init` or `reform` may take, and what they wait for.

    Args:
        who: for the log.
        deadline: on the monotonic clock.
        cancelled: set when the result is not needed any more.
        check: called repeatedly; raises an error that makes waiting useless.
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
        """The seconds until the deadline; never 0, so each call fails by itself."""
        return max(self.deadline - time.monotonic(), 0.1)

    def check(self) -> None:
        """Raise ClosedError if the result is not needed, or an error that makes waiting useless."""
        if self._cancelled.is_set():
            raise ClosedError("nobody waits for this any more")
        self._check()

    def retry(
        self,
        attempt: Callable[[], T],
        passes: Callable[[Any], bool],
        *errors: type[Exception],
    ) -> T:
        """Return what an attempt returns, which is made again until the deadline.

        `passes` knows some kinds of errors, and whether one may be gone at the next attempt. Any
        other error is raised. What is missing is logged every few seconds.
        """
        while True:
            try:
                return attempt()
            except errors as error:
                if not passes(error) or time.monotonic() + _PAUSE >= self.deadline:
                    raise
                self.say(error)
            self._cancelled.wait(_PAUSE)
            self.check()

    def say(self, what: object) -> None:
        """Log what is missing, if it is time for a message."""
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + _EVERY
            log.warning(
                "%s has waited %.3g s, and waits %.3g s more at most: %s",
                self._who,
                now - self._started,
                max(self.deadline - now, 0.0),
                what,
            )
