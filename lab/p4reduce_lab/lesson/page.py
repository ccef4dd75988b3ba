# SPDX-License-Identifier: Apache-2.0
"""The lessons as a page on loopback: the same commands, by clicking."""

from __future__ import annotations

import secrets
import socket
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
from p4reduce_lab.lesson.commands import LEFT_THE_STEPS, Commands, StepState
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
    """What one browser or several see: a lesson and where it is. Used by the server's one thread.

    Args:
        number: of the lesson to begin with, from 1.
    """

    def __init__(self, number: int) -> None:
        self._begin(number)

    def _begin(self, number: int) -> None:
        self._number = number
        self._lesson = LESSONS[number - 1]
        self._commands = Commands(self._lesson.begin())
        self._at = 0
        self._has_left = False  # the lesson's steps, by another command that moved the world
        self._said: list[str] = []

    def do(self, typed: str) -> None:
        """Run a command; the next view shows its result or its error."""
        name, _, which = typed.partition(" ")
        if typed == "restart":
            self._restart(self._number)
        elif name == "lesson" and which in map(str, range(1, len(LESSONS) + 1)):
            self._restart(int(which))
        elif typed == "quit":
            self._said = [f"> {typed}", "Close this page, and type Ctrl-C in the terminal."]
        else:
            self._run(typed)

    def _restart(self, number: int) -> None:
        self._commands.world.close()
        self._begin(number)

    def _run(self, typed: str) -> None:
        _, _, proposed = self._step()
        try:
            said = self._commands.do(typed)
        except LabError as error:
            said = [str(error)]
        self._said = [f"> {typed}", *said]
        state = self._commands.state_of(proposed) if proposed else StepState.OPEN
        if state is StepState.TAKEN:
            self._at += 1
        elif state is StepState.LEFT:
            self._has_left = True

    def _step(self) -> tuple[str, str, str]:
        """Return the title of the present step, its text, and the command that it proposes."""
        scenes = self._lesson.scenes
        if self._has_left:
            return "On your own", " ".join(LEFT_THE_STEPS), ""
        if self._at == len(scenes):
            return "What was to be seen", self._lesson.ending, ""
        scene = scenes[self._at]
        return f"Step {self._at + 1} of {len(scenes)}", scene.text, scene.command

    def view(self) -> dict[str, Any]:
        """All that the page shows."""
        world = self._commands.world
        title, text, proposed = self._step()
        return {
            "number": self._number,
            "lessons": [lesson.title for lesson in LESSONS],
            "about": self._lesson.about,
            "title": title,
            "text": text,
            "proposed": proposed,
            "said": self._said,
            "frames": [
                {"number": held.number, "line": line(held), "details": details(held)}
                for held in world.flying
            ],
            "ranks": [
                {"number": rank.number, "state": rank.state, "alive": rank.alive}
                for rank in world.ranks
            ],
            "slots": self._commands.slots(),
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
        said = request.headers.get("x-lesson", "").encode()
        if not secrets.compare_digest(said, token.encode()):
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
