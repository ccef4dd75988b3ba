# SPDX-License-Identifier: Apache-2.0
"""The process that `p4reduce.launch.start` starts.

Its standard input is a socket. It reads the request there, one line of JSON, and writes events, a
line each: {"ready": …}, {"news": …}, {"refused": …} or {"failed": …}. Standard output is anybody's:
a site's customisation of Python may write there. The network ends by a further line, when the
socket's other end is shut, when the process that started it has gone, or by SIGTERM.
A part of a network that ends without that line leaves its jobs to the part that an engine starts in
its place.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from types import FrameType
from typing import Any

from p4reduce_native.cpus import use_all_cpus

from p4reduce_lab.deploy.services import Services
from p4reduce_lab.deploy.serving import serve
from p4reduce_lab.deploy.settings import Settings
from p4reduce_lab.errors import ArgumentsError, Interrupted, LabError

_PAUSE = 0.1  # seconds between two looks at the processes
_STARTER = 0  # the socket


def main() -> int:
    """Return the exit code: 0 when the network was ended by a request."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    parent = os.getppid()
    use_all_cpus()  # not only the core that the rank which starts this is bound to
    try:
        settings = Settings(**json.loads(_request()))
        serve(settings, _ready, _news, lambda services: _is_over(services, parent))
    except ArgumentsError as error:
        _say({"refused": str(error)})
        return error.exit_code
    except LabError as error:
        _say({"failed": str(error)})
        return error.exit_code
    except Interrupted as interruption:
        _say({"failed": f"ended by {interruption}"})
        return interruption.exit_code
    return 0


def _request() -> bytes:
    """Read a line, and no byte more: what follows is the end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(_STARTER, 1)):
        line += byte
    return line


def _is_over(services: Services, parent: int) -> bool:
    # A process forked from the parent may hold the other end of the socket beyond the parent's end.
    poll = select.poll()
    poll.register(_STARTER, select.POLLIN)
    readable = poll.poll(_PAUSE * 1000)
    if not readable and os.getppid() == parent:
        return False
    if services.settings.part and not (readable and os.read(_STARTER, 1)):
        services.abandon()
    return True


def _ready(services: Services) -> None:
    _say(
        {
            "ready": {
                "variables": services.variables,
                "text": services.text,
                "pids": services.pids,
            }
        }
    )


def _news(services: Services, what: str) -> None:
    _say({"news": what, "pids": services.pids})


def _say(message: dict[str, Any]) -> None:
    try:
        os.write(_STARTER, json.dumps(message).encode() + b"\n")
    except OSError as error:
        print(f"p4reduce_lab.deploy: nobody reads: {error.strerror}", file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)
