# SPDX-License-Identifier: Apache-2.0
"""The processes of a network: switches, and the controller that owns them all."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from p4reduce import variables
from p4reduce_common.host_port import format_host_port, parse_host_port

from p4reduce_lab.deploy.arrangement import Arrangement, arrange
from p4reduce_lab.deploy.plan import Plan, draw, locked, shared
from p4reduce_lab.deploy.settings import CONTROLLER, SWITCHES, Settings
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, Child, ChildFailedError, Processes, ending
from p4reduce_lab.switches.embedded import EmbeddedSwitch

READY_TIMEOUT = 110.0  # seconds; a process that ends meanwhile is reported at once
MOST_RESTARTS, WITHIN = 3, 60.0  # of one process, within so many seconds
_UPLINK = 500  # a port above those of all ranks


class Services:
    """Starts switches and controller, and restarts those that end.

    Args:
        settings: of the network.
        directory: a private one with a short path, for sockets, keys and state.
        logs: where the logs go.

    Attributes:
        variables: by which workers find the network.
        text: what it is, for people.
    """

    def __init__(self, settings: Settings, directory: Path, logs: Path) -> None:
        self.settings = settings
        self.arrangement: Arrangement = arrange(settings)
        self.variables: dict[str, str] = {}
        self.processes = Processes()
        self._directory = directory
        self._logs = logs
        self._ready_file = directory / "controller.ready"
        self._switches: dict[str, EmbeddedSwitch] = {}
        self._controller: Child | None = None
        self._starts: dict[str, deque[float]] = {}
        self._options: list[str] = []
        self._prepare()

    @property
    def text(self) -> str:
        """The network for people."""
        where = "Unix ports" if self.settings.unix else "UDP ports"
        at = f" at {self.settings.host} (TLS)" if self.settings.is_remote else " on this host"
        return f"{self.arrangement.text} with {where} for {self.settings.ranks} ranks{at}"

    @property
    def pids(self) -> dict[str, int]:
        """The processes, by their names."""
        pids = {name: pid for name, one in self._switches.items() if (pid := one.pid) is not None}
        if self._controller is not None:
            pids["controller"] = self._controller.process.pid
        return pids

    def start(self) -> None:
        """Start all processes, or the requested part, and return when they serve.

        Raises:
            ChildFailedError: a process ended; has the end of its log.
            LabError: they are not ready in time.
        """
        deadline = time.monotonic() + READY_TIMEOUT
        if self.settings.part != CONTROLLER:
            for name in self._switches:
                self._start_switch(name)
        if self.settings.part != SWITCHES:
            # At the same time: it waits for its switches.
            self._ready_file.unlink(missing_ok=True)  # of one that another process had
            self._start_controller()
        if self.settings.part != CONTROLLER:
            for switch in self._switches.values():
                switch.wait_ready(READY_TIMEOUT)
        if self.settings.part == SWITCHES:
            return
        while not self._ready_file.exists():
            self.processes.check()
            if time.monotonic() > deadline:
                raise LabError(f"the network's controller was not ready within {READY_TIMEOUT:g} s")
            time.sleep(POLL)
        address = str(json.loads(self._ready_file.read_text())["address"])
        self.variables[variables.CONTROLLER] = address
        self._options[self._options.index("--listen") + 1] = address  # also of the next one

    def mend(self) -> Iterator[str]:
        """Restart ended processes; yields a sentence for each.

        Workers continue: the controller configures a new switch, and a new controller takes over
        its switches and jobs as they are.

        Raises:
            LabError: a process has ended too often; has the end of its log.
        """
        for name, switch in self._switches.items():
            if name in self._starts and not switch.alive():
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

    def abandon(self) -> None:
        """Kill the controller, which leaves its jobs to the next one with the same state."""
        if self._controller is not None:
            self.processes.kill(self._controller)

    def _ended(self, name: str, child: Child | None) -> str:
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

    def _prepare(self) -> None:
        """Draw secrets and ports, and decide which switch has which ports."""
        ports = sum(self.arrangement.ranks)
        if not self.settings.part:
            self._follow(draw(self.settings, ports, self._directory))
            return
        with locked(self._directory):
            self._follow(shared(self.settings, ports, self._directory))

    def _follow(self, plan: Plan) -> None:
        names = self.arrangement.names
        self.variables |= plan.variables
        every = dict(enumerate(plan.ports, start=1))
        key_file = Path(plan.key_file) if plan.key_file else None
        first, interfaces = 1, []
        for name, ranks in zip(names, self.arrangement.ranks, strict=True):
            own = {1 + n: every[first + n] for n in range(ranks)}
            if self.arrangement.root:
                own[_UPLINK] = f"unix-to:{self._link(name)}"
            self._add(name, own, key_file)
            interfaces.append(self._interface(every, first))
            first += ranks
        if self.arrangement.root:
            links = {1 + n: f"unix:{self._link(name)}" for n, name in enumerate(names)}
            self._add(self.arrangement.root, links, None)
        if self.arrangement.root or len(names) == 1:
            self.variables[variables.INTERFACE] = interfaces[0]
        else:
            named = (f"{name}={at}" for name, at in zip(names, interfaces, strict=True))
            self.variables[variables.INTERFACE] = ",".join(named)
        self._options = [*self._serve_options(), "--listen", plan.listen, *plan.certificates]

    def _interface(self, every: dict[int, str], first: int) -> str:
        """The variables of workers: rank 0's port is `first`, and the others follow."""
        if self.settings.unix:
            # Of switches side by side each has a row of its own in one directory: by links.
            if first == 1:
                return f"unix:{self._directory}/port{{port}}.sock"
            beside = self._directory / f"from{first}"
            beside.mkdir(exist_ok=True)
            for number in range(first, first + self.settings.ranks):
                link = beside / f"port{number - first + 1}.sock"
                if not link.is_symlink():
                    link.symlink_to(self._directory / f"port{number}.sock")
            return f"unix:{beside}/port{{port}}.sock"
        host, port = parse_host_port(every[first].removeprefix("udp:"))
        return f"udp:{format_host_port(host, port - 1)}+{{port}}"

    def _link(self, leaf: str) -> Path:
        return self._directory / f"link-{leaf}.sock"

    def _add(self, name: str, ports: dict[int, str], key_file: Path | None) -> None:
        own = self._directory / name
        own.mkdir(exist_ok=True)
        self._switches[name] = EmbeddedSwitch(
            own, ports, key_file=key_file, captures=self._captures(name)
        )

    def _captures(self, name: str) -> Path | None:
        if not self.settings.captures:
            return None
        everything = Path(self.settings.captures).absolute()
        alone = len(self.arrangement.names) == 1 and not self.arrangement.root
        return everything if alone else everything / name

    def _serve_options(self) -> list[str]:
        options = ["--state-dir", str(self._directory / "state")]
        options += ["--ready-file", str(self._ready_file), "--connect-timeout", f"{READY_TIMEOUT}"]
        slots = self.settings.slots or EmbeddedSwitch.slots
        options += ["--default-slots", str(slots)]
        if self.settings.lease:
            options += ["--lease", f"{self.settings.lease:g}"]
        if self.arrangement.root:
            topology = self._directory / "net.toml"
            topology.write_text(self._topology())
            return [*options, "--topology", str(topology)]
        for name, switch in self._switches.items():
            called = "" if len(self._switches) == 1 else f"{name}="
            options += ["--switch", f"{called}{switch.address}"]
        return [*options, "--ports", f"1-{self.settings.ranks}"]

    def _topology(self) -> str:
        lines = []
        for name, switch in self._switches.items():
            lines += [f"[switches.{name}]", f'p4runtime = "{switch.address}"']
            if name != self.arrangement.root:
                lines.append(f'ports = "1-{len(switch.ports) - 1}"')
        for number, name in enumerate(self.arrangement.names, start=1):
            lines += ["[[links]]", f'parent = "{self.arrangement.root}:{number}"']
            lines.append(f'child = "{name}:{_UPLINK}"')
        return "\n".join(lines) + "\n"

    def _start_switch(self, name: str) -> None:
        self._switches[name].start(self.processes, self._log(name))

    def _start_controller(self) -> None:
        command = [sys.executable, "-m", "p4reduce_controller", "serve", *self._options]
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
