# SPDX-License-Identifier: Apache-2.0
"""The page's samples: what asks between them changes none, and they end with the controller."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs it")

from p4reduce.control import control_pb2 as pb
from p4reduce_controller.events import EventLog
from p4reduce_controller.web import monitor
from p4reduce_controller.web.sample import MetricsSample

DEADLINE = 60.0


def test_a_scrape_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask, the page is made of its own samples alone; those without slots keep what
    those with slots have found."""
    samples = 0

    async def take(*given: Any, slots: bool) -> MetricsSample:
        nonlocal samples
        samples += 1
        collecting = pb.Slot(slot=3, activity=pb.COLLECTING, round=9, missing_ranks=[1])
        there = pb.Slots(jobs=[pb.JobSlots(incarnation=7, slots=[collecting])])
        jobs = (pb.Job(incarnation=7),)
        return MetricsSample(0.0, float(samples), jobs, (), {}, {}, {"s": there} if slots else {})

    def view(controller: Any, now: MetricsSample, *given: Any) -> dict[str, Any]:
        before, found, watched, history = given
        return {
            "open since": now.clock - found[7].seconds if found else None,
            "repeated": watched.repeated(7, "s", 3, now.clock),
            "points": len(history.add(7, (now.clock,))),
            "clocks": [before and before.clock, now.clock],
        }

    monkeypatch.setattr(monitor, "take", take)
    monkeypatch.setattr(monitor, "view", view)
    monkeypatch.setattr(monitor, "WATCHED_INTERVAL", 0.01)
    monkeypatch.setattr(monitor, "UNWATCHED_INTERVAL", 0.02)

    async def main() -> None:
        one = monitor.Monitor(SimpleNamespace(events=EventLog()), SimpleNamespace())  # type: ignore[arg-type]
        sampling = asyncio.create_task(one.run())
        first = json.loads(await one.next())
        opened = first["clocks"][1]
        before = first["points"]
        for _ in range(20):
            for _ in range(5):
                await one.sample()  # a scrape
            seen = json.loads(await one.next())
            assert (seen["open since"], seen["repeated"]) == (opened, True)
            assert seen["points"] > before
            before = seen["points"]
            await asyncio.sleep(0.03)  # samples that nobody watches
        # Of all samples only those of the page count.
        assert samples - before >= 100
        one.end()
        sampling.cancel()
        await asyncio.wait({sampling}, timeout=DEADLINE)

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(6))
def test_the_end_is_not_lost_beside_a_new_watcher(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher wakes the sampling, and that many steps of the event loop later it is cancelled."""

    async def take(*given: Any, **more: Any) -> SimpleNamespace:
        return SimpleNamespace(jobs=[], slots={}, clock=0.0)

    monkeypatch.setattr(monitor, "take", take)
    monkeypatch.setattr(monitor, "view", lambda *given: {})

    async def main() -> None:
        one = monitor.Monitor(SimpleNamespace(events=EventLog()), SimpleNamespace())  # type: ignore[arg-type]
        sampling = asyncio.create_task(one.run())
        while one.latest == "{}":
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)  # it waits for the next sample now
        watching = one.watch()
        await watching.__anext__()
        for _ in range(steps):
            await asyncio.sleep(0)
        one.end()
        sampling.cancel()
        _, running = await asyncio.wait({sampling}, timeout=DEADLINE)
        assert not running
        await watching.aclose()

    asyncio.run(main())
