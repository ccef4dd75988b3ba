# SPDX-License-Identifier: Apache-2.0
"""The processes of a network on this host: started, watched, and started again."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p4reduce import variables
from p4reduce_common.polling import attempts

from p4reduce_lab.deploy.credentials import TlsPaths
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildFailedError, ChildProcess, Processes, ending
from p4reduce_lab.switches.embedded import EmbeddedSwitch, tls_options

READY_TIMEOUT = 110.0  # seconds; a process that ends meanwhile is reported at once
CONNECT_TIMEOUT = 60.0  # seconds for the controller to reach all switches; then it says which
MOST_RESTARTS, WITHIN = 3, 60.0  # of one process, within so many seconds


@dataclass
class Parts:
    """What runs on this host.

    Attributes:
        text: the whole network for people.
        switches: by their names.
        serve: the options of `p4reduce-controller serve`; None: the controller runs elsewhere.
        variables: by which workers find the network; the controller's is added when it serves.
        tls: certificate, key and CA of the controller; None: it listens at a Unix socket.
    """

    text: str
    switches: dict[str, EmbeddedSwitch]
    serve: list[str] | None
    variables: dict[str, str] = field(default_factory=dict)
    tls: TlsPaths | None = None


def serve_options(listen: str, tls: TlsPaths | None, *, slots: int, lease: float) -> list[str]:
    """Return the options for jobs, and for workers and operators.

    Args:
        listen: the controller's address.
        tls: of the controller; None: none.
        slots: of a job; 0: the default.
        lease: seconds that a rank may be silent; 0: the default.
    """
    options = ["--default-slots", str(slots or EmbeddedSwitch.slots), "--listen", listen]
    if lease:
        options += ["--lease", f"{lease:g}"]
    return options if tls is None else [*options, *tls_options("--tls", tls)]


class Services:
    """Starts switches and controller, and restarts those that end.

    Args:
        parts: of the network.
        directory: a private one with a short path, for sockets, keys and state.
        logs: where the logs go.
    """

    def __init__(self, parts: Parts, directory: Path, logs: Path) -> None:
        self.parts = parts
        self.processes = Processes()
        self._directory = directory
        self._logs = logs
        self._ready_file = directory / "controller.ready"
        self._controller: ChildProcess | None = None
        self._starts: dict[str, deque[float]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The processes, by their names."""
        switches = self.parts.switches
        pids = {name: pid for name, one in switches.items() if (pid := one.pid) is not None}
        if self._controller is not None:
            pids["controller"] = self._controller.process.pid
        return pids

    def start(self) -> None:
        """Start all processes, and return when they serve.

        Raises:
            ChildFailedError: a process ended; has the end of its log.
            LabError: they are not ready in time.
        """
        deadline = time.monotonic() + READY_TIMEOUT
        switches, serve = self.parts.switches, self.parts.serve
        for name in switches:
            self._start_switch(name)
        if serve is not None:
            # At the same time: it waits for its switches.
            self._start_controller()
        for switch in switches.values():
            switch.wait_ready(READY_TIMEOUT)
        if serve is None:
            return
        for _ in attempts(deadline - time.monotonic(), POLL):
            if self._ready_file.exists():
                break
            self.processes.check()
        else:
            assert self._controller is not None
            raise LabError(
                f"the network's controller was not ready within {READY_TIMEOUT:g} s; "
                f"{self._controller.failure()}"
            )
        address = str(json.loads(self._ready_file.read_text())["address"])
        self.parts.variables[variables.CONTROLLER] = address
        serve[serve.index("--listen") + 1] = address  # also of the next one

    def mend(self) -> Iterator[str]:
        """Restart ended processes; yields a sentence for each.

        Workers continue: the controller configures a new switch, and a new controller takes over
        its switches and jobs as they are.

        Raises:
            LabError: a process has ended too often; has the end of its log.
        """
        for name, switch in self.parts.switches.items():
            if not switch.alive():
                how = self._ended(name, switch.child)
                switch.stop()
                self._start_switch(name)
                yield f"{name} ended ({how}): started again"
        if self._controller is not None and self._controller.returncode is not None:
            how = self._ended("controller", self._controller)
            self.processes.kill(self._controller)  # and what it may have left of its group
            self._start_controller()
            yield f"controller ended ({how}): started again"

    def close(self) -> None:
        """End the controller, which ends the jobs, and then the switches."""
        self.processes.end()

    def _ended(self, name: str, child: ChildProcess | None) -> str:
        """Say how a process ended. Raises LabError: it has been started often enough."""
        if child is None:
            return "it was not started"
        starts = self._starts[name]
        while starts and starts[0] < time.monotonic() - WITHIN:
            starts.popleft()
        if len(starts) > MOST_RESTARTS:
            raise LabError(
                f"{name} has ended {len(starts)} times within {WITHIN:g} s, and is not started "
                f"again: {ChildFailedError([child])}"
            )
        return ending(child.returncode or 0)

    def _start_switch(self, name: str) -> None:
        self.parts.switches[name].start(self.processes, self._log(name))

    def _start_controller(self) -> None:
        assert self.parts.serve is not None
        own = ["--state-dir", str(self._directory / "state")]
        own += ["--ready-file", str(self._ready_file), "--connect-timeout", f"{CONNECT_TIMEOUT}"]
        command = [sys.executable, "-m", "p4reduce_controller", "serve", *own, *self.parts.serve]
        log = self._log("controller")
        self._controller = self.processes.start("controller", command, log=log)

    def _log(self, name: str) -> Path:
        """The next log of a process, counting its starts."""
        starts = self._starts.setdefault(name, deque())
        starts.append(time.monotonic())
        number, log = 1, self._logs / f"{name}.log"
        while log.exists():
            number += 1
            log = self._logs / f"{name}-{number}.log"
        return log
