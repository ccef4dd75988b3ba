# SPDX-License-Identifier: Apache-2.0
"""Samples the controller once per second, for all watchers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from p4reduce_controller.controller import Controller
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.web.sample import Sample, take
from p4reduce_controller.web.view import History, view
from p4reduce_controller.web.waiting import Stalls

log = logging.getLogger(__name__)

WATCHED = 1.0  # seconds between two samples while somebody watches
UNWATCHED = 5.0  # and while nobody does: the charts need a past
EVENTS_SHOWN = 50
MAX_WATCHERS = 256


class Monitor:
    """Samples the controller. Create and use it in the event loop.

    One sample serves any number of watchers.
    """

    def __init__(self, controller: Controller, service: Service) -> None:
        self._controller = controller
        self._service = service
        self._stalls = Stalls()
        self._history = History()
        self._before: Sample | None = None
        self._latest: Sample | None = None
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
        following = asyncio.create_task(self._follow())
        try:
            while not self._ended:
                await self.sample(slots=self._watchers > 0)
                self._wake.clear()
                wait = WATCHED if self._watchers else UNWATCHED
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait)
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

    async def sample(self, *, slots: bool) -> Sample:
        """Take a sample now, and wake the watchers."""
        sample = await take(self._service, slots=slots)
        self._before, self._latest = self._latest, sample
        stalls = self._stalls.update(sample.jobs, sample.slots, sample.clock)
        shown = view(self._controller, sample, self._before, stalls, self._stalls, self._history)
        shown["events"] = list(self.events)
        self._text = json.dumps(shown, separators=(",", ":"))
        self._version += 1
        async with self._changed:
            self._changed.notify_all()
        return sample

    @property
    def latest(self) -> str:
        """The newest view as JSON."""
        return self._text

    async def watch(self) -> AsyncIterator[str]:
        """Yield views as JSON, from the newest on. A slow watcher skips views."""
        self._watchers += 1
        self._wake.set()
        seen = 0
        try:
            while not self._ended:
                async with self._changed:
                    while self._version <= seen and not self._ended:
                        await self._changed.wait()
                seen = self._version
                yield self._text
        finally:
            self._watchers -= 1

    @property
    def full(self) -> bool:
        """Whether the limit of watchers is reached."""
        return self._watchers >= MAX_WATCHERS
