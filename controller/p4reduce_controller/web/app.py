# SPDX-License-Identifier: Apache-2.0
"""The HTTP application: the page, a stream of its views, a single view, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from p4reduce_controller.web.guard import Guard
from p4reduce_controller.web.metrics import ControllerCollector
from p4reduce_controller.web.monitor import Monitor

STATIC = Path(__file__).parent / "static"


def make_app(monitor: Monitor, hosts: frozenset[str], token: str = "") -> Starlette:
    """Return the application. `guard.Guard` explains `hosts` and `token`."""
    registry = CollectorRegistry(auto_describe=False)
    collector = ControllerCollector(monitor)
    registry.register(collector)

    full = PlainTextResponse("As many browsers watch as may; close one.\n", 503)

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def view(_: Request) -> Response:
        if monitor.full:
            return full
        try:
            return Response(await monitor.next(), media_type="application/json")
        except asyncio.TimeoutError:
            return PlainTextResponse("The controller's switches do not answer.\n", 503)

    async def events(_: Request) -> Response:
        if monitor.full:
            return full

        async def stream() -> AsyncIterator[dict[str, str]]:
            async for text in monitor.watch():
                yield {"data": text}

        return EventSourceResponse(stream(), ping=15)

    async def metrics(_: Request) -> Response:
        collector.take(await monitor.sample())
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/view.json", view),
            Route("/events", events),
            Route("/metrics", metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
    )
