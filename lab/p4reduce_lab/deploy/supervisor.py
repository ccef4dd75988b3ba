# SPDX-License-Identifier: Apache-2.0
"""The process that `p4reduce.launch` starts: it runs a network, or a host's share of one.

Its standard input is a socket. It reads requests there, a line of JSON each, and writes events, a
line each: {"offer": …}, {"ready": …}, {"news": …}, {"refused": …} or {"failed": …}. Standard output
is anybody's: a site's customisation of Python may write there.

- `launch.start` sends {"settings": …}. The network ends by a further line, when the socket's other
  end is shut, when the process that started it has gone, or by SIGTERM.
- The ranks of a job send {"settings": …, "job": true} on a single host. On several they send
  {"share": …}, and after the offer {"offers": …}. The network then lasts as long as the ranks.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p4reduce.variables import CONTROLLER
from p4reduce_native.cpus import use_all_cpus

from p4reduce_lab.deploy.lifelines import STARTER, Lifelines, controller_there, ranks_elsewhere
from p4reduce_lab.deploy.serving import PAUSE, check_packages, run, serve
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.deploy.share import HostShare, NetworkShare
from p4reduce_lab.deploy.whole import deployed
from p4reduce_lab.errors import ArgumentsError, Interrupted, LabError
from p4reduce_lab.processes.foreground import raise_on_signals
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.services import Parts, Services


def main() -> int:
    """Return the exit code: 0 when the network was ended by a request."""
    raise_on_signals()
    parent = os.getppid()
    use_all_cpus()  # not only the core that the rank which starts this is bound to
    try:
        if not (line := _line()).startswith(b"{"):
            return 0  # it was not needed
        request = json.loads(line)
        if "share" in request:
            _serve_share(NetworkShare(**request["share"]))
        elif request.get("job"):
            _serve_job(DeploySettings(**request["settings"]))
        else:
            settings = DeploySettings(**request["settings"])
            serve(settings, _ready, _news, lambda _: _is_over(parent))
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


def _line() -> bytes:
    """Read a line, and no byte more: what follows is the end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(STARTER, 1)):
        line += byte
    return line


def _is_over(parent: int) -> bool:
    # A process forked from the parent may hold the other end of the socket beyond the parent's end.
    poll = select.poll()
    poll.register(STARTER, select.POLLIN)
    return bool(poll.poll(PAUSE * 1000)) or os.getppid() != parent


def _serve_job(settings: DeploySettings) -> None:
    """Run a network whose switches are all on this host, as long as a job's ranks need it."""
    check_packages()
    with run_directory() as directory:
        parts, lifelines = deployed(settings, directory), Lifelines(directory)
        _run_for_ranks(parts, directory, lifelines, others=settings.is_remote)


def _serve_share(share: NetworkShare) -> None:
    """Run a host's share of a job's network, as long as ranks need it."""
    check_packages()
    with run_directory() as directory:
        own, lifelines = HostShare(share, directory), Lifelines(directory)
        _say({"offer": {**own.offer(), "lifeline": str(lifelines.path)}})
        if line := _line():  # else the rank that has started this has ended
            offers = json.loads(line)["offers"]
            _run_for_ranks(own.parts(offers), directory, lifelines, others=True)


def _run_for_ranks(parts: Parts, directory: Path, lifelines: Lifelines, *, others: bool) -> None:
    """Run parts until no rank needs them.

    Args:
        parts: of this host.
        directory: for sockets, keys and state.
        lifelines: of this host's ranks.
        others: whether there are ranks on other hosts.
    """
    logs = directory / "logs"
    logs.mkdir()
    needed_elsewhere: Callable[[], bool] | None = None if others else lambda: False

    def wait(services: Services) -> bool:
        nonlocal needed_elsewhere
        if not lifelines.wait():
            return False
        if needed_elsewhere is None:
            controller = parts.variables[CONTROLLER]
            assert parts.tls is not None
            needed_elsewhere = (
                controller_there(controller)
                if not parts.serve
                else ranks_elsewhere(controller, parts.tls)
            )
        return not needed_elsewhere()

    def ready(services: Services) -> None:
        _ready(services, lifeline=str(lifelines.path))

    try:
        run(parts, directory, logs, ready, _news, wait)
    except LabError as error:
        lifelines.tell(str(error))
        raise


def _ready(services: Services, **more: str) -> None:
    parts = services.parts
    told = {"variables": parts.variables, "text": parts.text, "pids": services.pids, **more}
    _say({"ready": told})


def _news(services: Services, what: str) -> None:
    _say({"news": what, "pids": services.pids})


def _say(message: dict[str, Any]) -> None:
    try:
        os.write(STARTER, json.dumps(message).encode() + b"\n")
    except OSError as error:
        print(f"p4reduce_lab.deploy: nobody reads: {error.strerror}", file=sys.stderr)
