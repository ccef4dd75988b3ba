# SPDX-License-Identifier: Apache-2.0
"""The lessons as a page on loopback: the same commands, by clicking."""

from __future__ import annotations

import secrets
import socket
import threading
from pathlib import Path
from typing import Any

import uvicorn
from p4reduce_controller.web.guard import own_names
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from p4reduce_lab.errors import LabError
from p4reduce_lab.lesson.commands import Commands
from p4reduce_lab.lesson.describe import details, legend, line, stopped, values
from p4reduce_lab.lesson.lessons import LESSONS

STATIC = Path(__file__).parent / "static"
LONGEST = 200  # characters of a command
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class LessonRun:
    """What one browser or several see: a lesson and where it is.

    Args:
        number: of the lesson to begin with, from 1.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._number = number
        self._lesson = LESSONS[number - 1]
        self._commands = Commands(self._lesson.begin())
        self._at = 0
        self._said: list[str] = []

    def begin(self, number: int) -> None:
        """Restart a lesson, or begin another one."""
        self._commands.world.close()
        self._number = number
        self._lesson = LESSONS[number - 1]
        self._commands = Commands(self._lesson.begin())
        self._at, self._said = 0, []

    def do(self, typed: str) -> None:
        """Run a command; the next view shows its result or its error."""
        with self._lock:
            name, _, which = typed.partition(" ")
            if name == "lesson" and which in map(str, range(1, len(LESSONS) + 1)):
                self.begin(int(which))
                return
            try:
                self._said = [f"> {typed}", *self._commands.do(typed)]
            except LabError as error:
                self._said = [f"> {typed}", str(error)]
                return
            scenes = self._lesson.scenes
            if (
                self._at < len(scenes)
                and self._commands.finished.split() == scenes[self._at].command.split()
            ):
                self._at += 1

    def view(self) -> dict[str, Any]:
        """All that the page shows."""
        with self._lock:
            world, scenes = self._commands.world, self._lesson.scenes
            over = self._at >= len(scenes)
            return {
                "number": self._number,
                "lessons": [lesson.title for lesson in LESSONS],
                "about": self._lesson.about,
                "step": self._at,
                "steps": len(scenes),
                "text": self._lesson.ending if over else scenes[self._at].text,
                "proposed": "" if over else scenes[self._at].command,
                "said": self._said,
                "frames": [
                    {"number": held.number, "line": line(held), "details": details(held)}
                    for held in world.flying
                ],
                "ranks": [
                    {"number": rank.number, "state": rank.state, "alive": rank.alive}
                    for rank in world.ranks
                ],
                "slots": self._commands.do("slots"),
                "legend": legend(),
                "breakpoints": [
                    {"number": number, "place": place}
                    for number, place in world.switch.debugger.breakpoints.items()
                ],
                "held": self._held(),
            }

    def _held(self) -> dict[str, Any] | None:
        """The frame that the switch holds at a breakpoint."""
        last = self._commands.last
        if last is None or last.stop is None:
            return None
        return {
            "number": last.frame.number,
            "where": stopped(last.stop, last.lines),
            "values": values(last.stop, ""),
        }


def make_app(run: LessonRun, token: str) -> Starlette:
    """Make the application.

    Args:
        run: what it shows.
        token: what the page sends with each command, so that no other site's page can.
    """

    async def page(_: Request) -> Response:
        text = (STATIC / "lesson.html").read_text(encoding="utf-8")
        return HTMLResponse(text.replace("{{token}}", token), headers=_HEADERS)

    async def view(_: Request) -> Response:
        return JSONResponse(run.view(), headers=_HEADERS)

    async def do(request: Request) -> Response:
        if not secrets.compare_digest(request.headers.get("x-lesson", ""), token):
            return JSONResponse({"error": "open the page first"}, 403)
        if int(request.headers.get("content-length", "0")) > LONGEST:
            return JSONResponse({"error": f"a command has {LONGEST} characters at most"}, 413)
        typed = (await request.body()).decode("utf-8", "replace").strip()
        if typed:
            run.do(typed)
        return JSONResponse(run.view(), headers=_HEADERS)

    async def icon(_: Request) -> Response:
        return FileResponse(STATIC / "lesson.svg")

    hosts = sorted(own_names("127.0.0.1"))
    return Starlette(
        routes=[
            Route("/", page),
            Route("/view", view),
            Route("/do", do, methods=["POST"]),
            Route("/favicon.ico", icon),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
    )


def serve(number: int, listener: socket.socket) -> None:
    """Serve until Ctrl-C."""
    app = make_app(LessonRun(number), secrets.token_urlsafe(16))
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, ws="none")
    uvicorn.Server(config).run(sockets=[listener])
