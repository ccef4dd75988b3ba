# SPDX-License-Identifier: Apache-2.0
"""Events and their watchers. Used in the daemon's event loop only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

REMEMBERED = 1000
WAITING = 1000  # events that a slow watcher may be behind
MAX_WATCHERS = 64


@dataclass(frozen=True)
class ControllerEvent:
    """Something that happened to a job, or to all jobs if `job` is empty."""

    time: float  # seconds since the epoch
    job: str
    incarnation: int
    kind: str
    text: str


class TooSlowError(Exception):
    """A watcher read too slowly, and events were lost for it."""


class TooManyError(Exception):
    """The limit of watchers is reached."""


@dataclass(frozen=True)
class _EndOfEvents:
    """Marks the end of a watcher's queue."""

    too_slow: bool


class EventLog:
    """The latest events, and who watches them."""

    def __init__(self) -> None:
        self._recent: deque[ControllerEvent] = deque(maxlen=REMEMBERED)
        self._watchers: set[asyncio.Queue[ControllerEvent | _EndOfEvents]] = set()

    def publish(self, event: ControllerEvent) -> None:
        """Store an event and give it to all watchers."""
        self._recent.append(event)
        for watcher in list(self._watchers):
            # The last place is kept for the end.
            if watcher.qsize() < WAITING:
                watcher.put_nowait(event)
            else:
                self._stop(watcher, too_slow=True)

    def close(self) -> None:
        """End all watches."""
        for watcher in list(self._watchers):
            self._stop(watcher, too_slow=False)

    def _stop(
        self, watcher: asyncio.Queue[ControllerEvent | _EndOfEvents], *, too_slow: bool
    ) -> None:
        self._watchers.discard(watcher)
        watcher.put_nowait(_EndOfEvents(too_slow))

    @contextlib.contextmanager
    def watch(self, job: str, recent: int) -> Iterator[AsyncIterator[ControllerEvent]]:
        """Yield events of `job`, or of all if empty: the `recent` latest ones, then each new one.

        Ends when the log is closed. Raises TooSlowError if the caller is so slow that events would
        be lost, and TooManyError if too many watch already.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise TooManyError(f"{MAX_WATCHERS} clients watch already, and no more can")
        queue: asyncio.Queue[ControllerEvent | _EndOfEvents] = asyncio.Queue(WAITING + 1)
        past = [event for event in self._recent if job in ("", event.job)]
        for event in past[max(0, len(past) - recent) :]:
            queue.put_nowait(event)
        self._watchers.add(queue)
        try:
            yield self._follow(queue, job)
        finally:
            self._watchers.discard(queue)

    async def _follow(
        self, queue: asyncio.Queue[ControllerEvent | _EndOfEvents], job: str
    ) -> AsyncIterator[ControllerEvent]:
        while True:
            event = await queue.get()
            if isinstance(event, _EndOfEvents):
                if event.too_slow:
                    raise TooSlowError(f"more than {WAITING} events behind")
                return
            if job in ("", event.job):
                yield event


class RateLimit:
    """Lets `burst` events through at once, then `rate` per second; counts the others."""

    def __init__(self, burst: int, rate: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._tokens = float(burst)
        self._last = clock()
        self._held_back = 0

    def passes(self) -> int | None:
        """Return None to suppress this event, else how many were suppressed before it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
        self._last = now
        if self._tokens < 1:
            self._held_back += 1
            return None
        self._tokens -= 1
        held_back, self._held_back = self._held_back, 0
        return held_back
