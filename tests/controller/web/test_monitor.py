# SPDX-License-Identifier: Apache-2.0
"""The page's samples end with the controller."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs it")

from p4reduce_controller.events import EventLog
from p4reduce_controller.web import monitor

DEADLINE = 60.0


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
