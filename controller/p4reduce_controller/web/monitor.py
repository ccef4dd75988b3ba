# SPDX-License-Identifier: Apache-2.0
"""Samples the controller for all watchers: each second while there are any, else every 5 s."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from p4reduce_common.threads import watch_task

from p4reduce_controller.controller import Controller
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.web.sample import MetricsSample, take
from p4reduce_controller.web.view import History, view
from p4reduce_controller.web.waiting import Stalls

log = logging.getLogger(__name__)

WATCHED_INTERVAL = 1.0  # seconds between two samples while somebody watches
UNWATCHED_INTERVAL = 5.0  # the same while nobody does: the charts need a past
NEXT_WITHIN = 30.0  # seconds that `next` waits
EVENTS_SHOWN = 50
MAX_WATCHERS = 256


class Monitor:
    """Samples the controller. Create and use it in the event loop.

    One sample of `run` serves all watchers of the page. It keeps what the next view needs: open
    rounds, the charts' past, the sample that rates are relative to. A scrape of metrics takes a
    sample of its own by `sample`, which changes none of these.
    """

    def __init__(self, controller: Controller, service: Service) -> None:
        self._controller = controller
        self._service = service
        self._stalls = Stalls()
        self._history = History()
        self._latest: MetricsSample | None = None
        self._sampling = False
        self._text = "{}"
        self._changed = asyncio.Condition()
        self._version = 0
        self._watchers = 0
        self._wake = asyncio.Event()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_SHOWN)
        self.event_counts: dict[str, int] = {}
        self._ended = False

    @property
    def controller(self) -> Controller:
        """The controller that is sampled."""
        return self._controller

    def end(self) -> None:
        """Make `run` end. The caller cancels it as well.

        Cancelling alone is not enough: Python 3.11's `asyncio.wait_for` loses a cancellation that
        arrives together with its result.
        """
        self._ended = True

    async def run(self) -> None:
        """Sample until cancelled, or until `end` is called."""
        following = asyncio.create_task(self._follow(), name="events")
        watch_task(following)
        try:
            while not self._ended:
                try:
                    await self._advance()
                except Exception:  # a fault of one sample; the next may be without
                    log.exception("the live page's sample failed")
                self._wake.clear()
                await asyncio.sleep(WATCHED_INTERVAL)
                if not self._watchers:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(
                            self._wake.wait(), UNWATCHED_INTERVAL - WATCHED_INTERVAL
                        )
        finally:
            following.cancel()
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    async def _follow(self) -> None:
        """Count all events; the latest are shown."""
        with self._controller.events.watch("", EVENTS_SHOWN) as events:
            async for event in events:
                self.event_counts[event.kind] = self.event_counts.get(event.kind, 0) + 1
                self.events.append(
                    {"time": event.time, "job": event.job, "kind": event.kind, "text": event.text}
                )

    async def sample(self) -> MetricsSample:
        """Return a fresh sample for a scrape, without slots."""
        return await take(self._service, slots=False)

    async def _advance(self) -> None:
        """Take the page's next sample, and wake the watchers."""
        self._sampling = True
        try:
            sample = await take(self._service, slots=self._watchers > 0)
        finally:
            self._sampling = False
        found = self._stalls.update(sample.jobs, sample.slots, sample.clock)
        before, self._latest = self._latest, sample
        shown = view(self._controller, sample, before, found, self._stalls, self._history)
        self._text = json.dumps(shown | {"events": list(self.events)}, separators=(",", ":"))
        self._version += 1
        async with self._changed:
            self._changed.notify_all()

    @property
    def latest(self) -> str:
        """The newest view as JSON."""
        return self._text

    async def watch(self) -> AsyncIterator[str]:
        """Yield views as JSON, from the newest on. A slow watcher skips views."""
        seen = 0
        with self._watching():
            while not self._ended:
                text, seen = await self._after(seen)
                yield text

    async def next(self) -> str:
        """Return the first view whose sample begins after this call, as JSON.

        Raises asyncio.TimeoutError: none came within `NEXT_WITHIN`.
        """
        with self._watching():
            begun = self._version + self._sampling
            return (await asyncio.wait_for(self._after(begun), NEXT_WITHIN))[0]

    async def _after(self, version: int) -> tuple[str, int]:
        async with self._changed:
            while self._version <= version and not self._ended:
                await self._changed.wait()
        return self._text, self._version

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1

    @property
    def full(self) -> bool:
        """Whether the limit of watchers is reached."""
        return self._watchers >= MAX_WATCHERS
