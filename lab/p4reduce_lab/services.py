# SPDX-License-Identifier: Apache-2.0
"""The processes of a network on this host: started, watched, and started again."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p4reduce import variables
from p4reduce_common.polling import attempts

from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildFailedError, ChildProcess, Processes, ending
from p4reduce_lab.switches.embedded import TlsPaths, tls_options
from p4reduce_lab.switches.launch import SwitchLauncher
from p4reduce_lab.topology import UPLINK, LabTopology, PortRow

# Seconds. A process that ends is reported at once. This is for one that hangs, and long enough for
# a busy machine.
READY_TIMEOUT = 110.0
CONNECT_TIMEOUT = 60.0  # seconds for the controller to reach all switches; then it says which
MOST_RESTARTS, WITHIN = 3, 60.0  # of one process, within so many seconds
CONTROLLER = "controller"


@dataclass
class Parts:
    """What runs on this host.

    Attributes:
        text: the whole network for people.
        switches: by their names.
        serve: the options of `p4reduce-controller serve`; empty: the controller runs elsewhere.
        variables: by which workers find the network; the controller's is sure when it serves.
        tls: certificate, key and CA of the controller; None: it listens at a Unix socket.
    """

    text: str
    switches: Mapping[str, SwitchLauncher] = field(default_factory=dict)
    serve: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    tls: TlsPaths | None = None


def parts_of(
    topology: LabTopology,
    rows: Sequence[PortRow],
    launcher: Callable[[Path, Mapping[int, str]], SwitchLauncher],
    directory: Path,
    links: Mapping[str, tuple[str, str]] | None = None,
) -> Parts:
    """Return the parts of a network that is all on this host, but for `serve_options`.

    Args:
        topology: its switches.
        rows: the ports of all ranks, as many as `LabTopology.rows`.
        launcher: makes a switch with a directory of its own, which has its name, and with ports.
        directory: a private one with a short path, for sockets.
        links: of a tree: both ends of a switch's link to its parent, the parent's first, by the
            switch's name; None: Unix sockets.
    """
    if links is None:
        ways = {node.name: directory / f"link-{node.name}.sock" for node in topology.nodes}
        links = {name: (f"unix:{way}", f"unix-to:{way}") for name, way in ways.items()}
    switches = {}
    for node in topology.nodes:
        ports: dict[int, str] = topology.row_of(node, rows)
        for below in topology.nodes:
            if below.parent == node.name:
                ports[below.parent_port] = links[below.name][0]
        if node.parent:
            ports[UPLINK] = links[node.name][1]
        own = directory / node.name
        own.mkdir()
        switches[node.name] = launcher(own, ports)
    addresses = {name: switch.grpc_address for name, switch in switches.items()}
    if len(switches) == 1:
        serve = ["--switch", *addresses.values(), "--ports", f"1-{topology.ranks}"]
        for port, mac in rows[0].stations.items():
            serve += ["--station", f"{mac}@{port}"]
    else:
        file = directory / "net.toml"
        file.write_text(topology.file_text(addresses, rows))
        serve = ["--topology", str(file)]
    if rows[0].ip:
        serve += ["--switch-ip", rows[0].ip]
    ways_in = [row.interface for row in rows]
    if len(rows) > 1:
        ways_in = [f"{name}={way}" for name, way in zip(switches, ways_in, strict=True)]
    return Parts(topology.text, switches, serve, {variables.INTERFACE: ",".join(ways_in)})


def serve_options(
    listen: str, *, slots: int | str, lease: float = 0.0, tls: TlsPaths | None = None
) -> list[str]:
    """Return the options of `p4reduce-controller serve` for jobs, and for workers and operators.

    Args:
        listen: the controller's address.
        slots: of a job, or "auto".
        lease: seconds that a rank may be silent; 0: the default.
        tls: of the controller; None: none.
    """
    options = ["--default-slots", str(slots), "--listen", listen]
    if lease:
        options += ["--lease", f"{lease:g}"]
    return options if tls is None else [*options, *tls_options("--tls", tls)]


class Services:
    """Starts switches and controller, and restarts those that end.

    Args:
        parts: of the network.
        directory: a private one with a short path, for sockets, keys and state.
        logs: where the logs go: controller.log, switch.log, and of several switch-NAME.log. Those
            of a process that is started again have a number: controller-2.log.

    Attributes:
        parts: of the network.
        processes: all of them.
        controller: its process, once it was started.
        state_directory: the controller's, with the operator's token.
    """

    def __init__(self, parts: Parts, directory: Path, logs: Path) -> None:
        self.parts = parts
        self.processes = Processes()
        self.controller: ChildProcess | None = None
        self.state_directory = directory / "state"
        self._logs = logs
        self._ready_file = directory / "controller.ready"
        self._starts: dict[str, deque[float]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The processes, by their names."""
        switches = self.parts.switches
        pids = {name: pid for name, one in switches.items() if (pid := one.pid) is not None}
        if self.controller is not None:
            pids[CONTROLLER] = self.controller.process.pid
        return pids

    def start(self) -> None:
        """Start all processes, and do not wait for them.

        Raises:
            LabError: something that a switch needs is missing.
        """
        for name in self.parts.switches:
            self.start_switch(name)
        if self.parts.serve:
            self.start_controller()  # at the same time: it waits for its switches

    def wait_ready(
        self, timeout: float = READY_TIMEOUT, *, may_finish: Sequence[ChildProcess] = ()
    ) -> None:
        """Wait until all processes serve.

        Args:
            timeout: seconds.
            may_finish: children that may be through already, with exit code 0.

        Raises:
            ChildFailedError: a process ended; has the end of its log.
            LabError: they are not ready in time.
        """
        deadline = time.monotonic() + timeout
        for switch in self.parts.switches.values():
            switch.wait_ready(max(deadline - time.monotonic(), 0.0))
        if not (serve := self.parts.serve):
            return
        for _ in attempts(deadline - time.monotonic(), POLL):
            ready = self._ready_file.exists()
            self.processes.check(may_finish=may_finish)
            if ready:
                break
        else:
            assert self.controller is not None
            raise LabError(
                f"the network's controller was not ready within {timeout:g} s; "
                f"{self.controller.failure()}"
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
                self.start_switch(name)
                yield f"{name} ended ({how}): started again"
        if self.controller is not None and self.controller.returncode is not None:
            how = self._ended(CONTROLLER, self.controller)
            self.processes.kill(self.controller)  # and what it may have left of its group
            self.start_controller()
            yield f"controller ended ({how}): started again"

    def start_switch(self, name: str) -> None:
        """Start a switch that does not run. Raises LabError."""
        log = name if name == "switch" else f"switch-{name}"
        self.parts.switches[name].start(self.processes, self._log(name, log))

    def start_controller(self) -> None:
        """Start the controller, which does not run."""
        self._ready_file.unlink(missing_ok=True)  # a crash has left it
        own = ["--state-dir", str(self.state_directory)]
        own += ["--ready-file", str(self._ready_file), "--connect-timeout", f"{CONNECT_TIMEOUT}"]
        command = [sys.executable, "-m", "p4reduce_controller", "serve", *own, *self.parts.serve]
        log = self._log(CONTROLLER, CONTROLLER)
        self.controller = self.processes.start(CONTROLLER, command, log=log)

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

    def _log(self, name: str, stem: str) -> Path:
        """The next log of a process, counting its starts."""
        starts = self._starts.setdefault(name, deque())
        starts.append(time.monotonic())
        number, log = 1, self._logs / f"{stem}.log"
        while log.exists():
            number += 1
            log = self._logs / f"{stem}-{number}.log"
        return log
