# SPDX-License-Identifier: Apache-2.0
"""A running switch with its controller, for the demo, ``exec`` and ``up``."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, NoAnswerError

from p4reduce_lab import live_page, slow_paths
from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import LabError
from p4reduce_lab.fresh_program import refresh_program
from p4reduce_lab.networks.mininet_net import MininetNetwork, host_interface, switch_ip
from p4reduce_lab.networks.routed import RoutedNetwork
from p4reduce_lab.networks.shaped import ShapedNetwork
from p4reduce_lab.processes.children import ChildProcess, Processes
from p4reduce_lab.processes.threads import single_thread_variables
from p4reduce_lab.switches.launch import SwitchLauncher
from p4reduce_lab.switches.udp_ports import UdpPorts
from p4reduce_lab.topology_file import switch_table, topology_text

# Seconds. A process that ends is reported at once. This is for one that hangs, and long enough for
# a busy machine.
READY_TIMEOUT = 120.0
PROBE = 0.25  # seconds; the children are checked between two probes
CONTROLLER_VARIABLE = "P4REDUCE_CONTROLLER"
INTERFACE_VARIABLE = "P4REDUCE_INTERFACE"
JOB_VARIABLE = "P4REDUCE_JOB"
STATE_VARIABLE = "P4REDUCE_STATE_DIR"
NET_FILE = "net.toml"  # of several switches, for the controller


def own_path() -> str:
    """PATH with the commands of this Python's environment first, which need not be activated."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


class System:
    """A switch with ``ports`` ports, and a controller that owns it.

    Several switches side by side are called a, b and so on; workers have a port at each.

    Leaving the ``with`` block ends whatever is in :attr:`processes`, last started first.

    Args:
        choice: The switch to start.
        directory: A short path, for the sockets and the controller's state.
        logs: Where switch.log and controller.log go, and captures where the choice has them.
        ports: How many; a worker of rank r uses port r + 1.
        network: One that is up already, and stays the caller's. None: as the choice says.
        switches: Their number.

    Attributes:
        network: The Mininet network, or the one given, while there is one.
        controller: The controller's process, once it was started.
        state_directory: The controller's, with the operator's token.
        page_address: HOST:PORT of the controller's live page, where the choice has one.
        launchers: The switches that were started, by name; `restart_switch` takes the first.
        topology: What `Summary` calls it.
        switch_name: For people: what `restart_switch` kills.
    """

    def __init__(
        self,
        choice: LabChoice,
        directory: Path,
        logs: Path,
        ports: int,
        network: ShapedNetwork | RoutedNetwork | None = None,
        switches: int = 1,
    ) -> None:
        self.processes = Processes()
        self.controller: ChildProcess | None = None
        self._directory = directory
        self._logs = logs
        self._ports = ports
        self._choice = choice
        self._names = ascii_lowercase[:switches] if switches > 1 else ("switch",)
        self.topology = "side-by-side" if switches > 1 else "star"
        self.switch_name = "switch a" if switches > 1 else "the switch"
        self.launchers: dict[str, SwitchLauncher] = {}
        self._net_file: Path | None = None
        self.network: MininetNetwork | ShapedNetwork | RoutedNetwork | None = network
        self._own_network: MininetNetwork | None = None
        self.controller_address = f"unix:{directory / 'controller.sock'}"
        self.state_directory = directory / "state"
        self.control = ControlClient(self.controller_address)
        self.page_address: str | None = None

    def show_page(self) -> str:
        """Open the live page, if there is one; return a line about it, or ""."""
        return live_page.show(self.page_address) if self.page_address else ""

    def counters(self) -> list[dict[str, int]]:
        """Return how many frames of each switch had each outcome, without zeros."""
        control = self.control
        switches = control.call(control.stub.ListSwitches, pb.ListSwitchesRequest()).switches
        answers = (
            control.call(control.stub.GetCounters, pb.GetCountersRequest(switch=switch.name))
            for switch in switches
        )
        return [
            {count.name: int(count.frames) for count in answer.counts if count.frames}
            for answer in answers
        ]

    def start(self) -> None:
        """Makes the network, starts all processes and does not wait for them.

        Raises:
            LabError: something that the network or the switch needs is missing.
        """
        self._make_network(len(self._names))
        tables = []
        for number, name in enumerate(self._names):
            ports: int | Mapping[int, str] = self._ports
            stations: Mapping[int, str] = {}
            if isinstance(self.network, RoutedNetwork):
                ports = UdpPorts(self.network.switch_address, self._ports)
            elif isinstance(self.network, ShapedNetwork):
                ports = self.network.ports
            elif self.network is not None:
                ports, stations = self.network.ports_of(number), self.network.stations_of(number)
            launcher = self._start_switch(name, ports)
            ip = switch_ip(number) if stations else ""
            address = launcher.grpc_address
            tables.append(switch_table(name, address, self._ports, stations, ip))
        if len(tables) > 1:
            self._write_net_file(tables)
        self.start_controller()

    def _make_network(self, switches: int) -> None:
        """Make the network of the choice, with links to so many switches, unless one is given."""
        if self._choice.network == "mininet" and self.network is None:
            own = MininetNetwork(self._ports, self._choice.bandwidth, switches)
            self.network = self._own_network = own
            own.start()

    def _start_switch(self, name: str, ports: int | Mapping[int, str]) -> SwitchLauncher:
        """Start a switch in a directory of its own. Raises LabError."""
        own = self._directory / name
        own.mkdir()
        launcher = self.launchers[name] = self._choice.launcher(own, ports)
        if isinstance(self.network, ShapedNetwork | RoutedNetwork):
            launcher.prefix = self.network.switch_prefix
        log = "switch.log" if name == "switch" else f"switch-{name}.log"
        launcher.start(self.processes, self._logs / log)
        return launcher

    def _write_net_file(self, tables: Sequence[str]) -> None:
        """Write the file of several switches, for the controller."""
        self._net_file = self._directory / NET_FILE
        self._net_file.write_text(topology_text(tables))

    def restart_switch(self, killed: Callable[[], None]) -> None:
        """Kill the switch as a crash would, call `killed`, and return when the next one serves
        P4Runtime."""
        switch = self._running_switch
        switch.kill()
        killed()
        switch.start(self.processes, self._logs / "switch-2.log")
        switch.wait_ready()

    def restart_controller(self, killed: Callable[[], None]) -> None:
        """Kills the controller, calls `killed`, and starts the next one."""
        assert self.controller is not None
        self.processes.kill(self.controller)
        killed()
        self.start_controller("controller-2.log")

    def start_controller(self, log: str = "controller.log") -> None:
        """Starts the controller, with its output in the log of that name, and does not wait."""
        refresh_program()
        command = [sys.executable, "-m", "p4reduce_controller", "serve", *self._serve_options()]
        command += ["--listen", self.controller_address]
        command += ["--default-slots", str(self._running_switch.slots)]
        if self.network is not None and not isinstance(self.network, RoutedNetwork):
            command += ["--switch-ip", switch_ip()]
        command += ["--state-dir", str(self.state_directory)]
        command += ["--connect-timeout", f"{READY_TIMEOUT:g}"]
        if self._choice.web:
            # The next controller takes the same, so that browsers find it.
            self.page_address = self.page_address or live_page.free_address()
            command += ["--http", self.page_address]
        self.controller = self.processes.start("controller", command, log=self._logs / log)

    def _serve_options(self) -> list[str]:
        """The options of `serve` for its switches."""
        if self._net_file is not None:
            return ["--topology", str(self._net_file)]
        options = ["--switch", self._running_switch.grpc_address, "--ports", f"1-{self._ports}"]
        if self.network is not None:
            for port, mac in self.network.stations.items():
                options += ["--station", f"{mac}@{port}"]
        return options

    def wait_ready(
        self, timeout: float = READY_TIMEOUT, *, may_finish: Sequence[ChildProcess] = ()
    ) -> pb.Switch:
        """Wait until the controller serves, and return its report on the first switch.

        Args:
            timeout: Seconds.
            may_finish: Children that may be through already, with exit code 0.

        Raises:
            LabError: another process ended, or the time is up.
        """
        deadline = time.monotonic() + timeout
        for launcher in self.launchers.values():
            launcher.wait_ready(max(deadline - time.monotonic(), 0.0))
        while True:
            self.processes.check(may_finish=may_finish)
            try:
                list_switches = self.control.stub.ListSwitches
                request = pb.ListSwitchesRequest()
                reply = self.control.call(list_switches, request, timeout=PROBE, wait=True)
                slow_paths.tell([self._running_switch.log])
                return reply.switches[0]
            except NoAnswerError as error:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"the controller was not ready within {timeout:g} s: {error}\n"
                        f"See {self._logs / 'controller.log'} and {self._running_switch.log}."
                    ) from None

    def variables(self) -> dict[str, str]:
        """The environment by which :func:`p4reduce.init` finds switch and controller."""
        ways = [launcher.interface for launcher in self.launchers.values()]
        if self.network is not None and not isinstance(self.network, RoutedNetwork):
            ways = [host_interface(number) for number in range(len(self._names))]
        named = [f"{name}={way}" for name, way in zip(self._names, ways, strict=True)]
        interface = ",".join(named) if len(named) > 1 else ways[0]
        return {CONTROLLER_VARIABLE: self.controller_address, INTERFACE_VARIABLE: interface}

    @property
    def switch_pid(self) -> int | None:
        """The switch's process."""
        return self._running_switch.pid

    def rank_command(self, rank: int, command: list[str]) -> list[str]:
        """Return ``command`` so that it runs where this rank's worker belongs."""
        return command if self.network is None else [*self.network.prefix(rank), *command]

    @property
    def _running_switch(self) -> SwitchLauncher:
        return next(iter(self.launchers.values()))

    def __enter__(self) -> System:
        return self

    def __exit__(self, *error: object) -> None:
        self.control.close()
        self.processes.end()
        for number, (name, launcher) in enumerate(self.launchers.items()):
            self._stop_switch(launcher, f"-{name}" if number else "")
        if self._own_network is not None:
            self._own_network.stop()
        self.network = self._own_network = None

    def _stop_switch(self, switch: SwitchLauncher, mark: str) -> None:
        """End a switch; its captures go to the logs."""
        switch.stop()
        for capture in switch.directory.glob("*.pcap"):
            shutil.move(capture, self._logs / f"{capture.stem}{mark}{capture.suffix}")


def rank_variables(rank: int, workers: int) -> dict[str, str]:
    """The environment of a rank, by torchrun's names."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "PYTHONUNBUFFERED": "1",
        **single_thread_variables(),
    }
