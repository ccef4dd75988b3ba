# SPDX-License-Identifier: Apache-2.0
"""A running network with its controller, for the demo, ``exec`` and ``up``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from p4reduce import variables
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient

from p4reduce_lab import live_page, slow_paths
from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import LabError
from p4reduce_lab.fresh_program import refresh_program
from p4reduce_lab.networks.links import set_rate
from p4reduce_lab.networks.mininet_net import MininetNetwork
from p4reduce_lab.networks.routed import RoutedNetwork
from p4reduce_lab.networks.shaped import ShapedNetwork
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.processes.children import ChildProcess
from p4reduce_lab.processes.threads import single_thread_variables
from p4reduce_lab.services import READY_TIMEOUT, Parts, Services, parts_of, serve_options
from p4reduce_lab.switches.embedded import unix_rows
from p4reduce_lab.switches.launch import SwitchLauncher
from p4reduce_lab.switches.udp_ports import UdpPorts, udp_ports
from p4reduce_lab.topology import LabTopology, PortRow

JOB_VARIABLE = "P4REDUCE_JOB"
STATE_VARIABLE = "P4REDUCE_STATE_DIR"


def own_path() -> str:
    """PATH with the commands of this Python's environment first, which need not be activated."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


class System(Services):
    """The switches of a topology, and a controller that owns them, where a choice has them.

    A worker of rank r uses port r + 1, of each switch where several are side by side.

    Leaving the ``with`` block ends whatever is in :attr:`processes`, last started first.

    Args:
        choice: The kind of the switches, and where the workers are.
        directory: A short path, for the sockets and the controller's state.
        logs: Where the logs go, and captures where the choice has them.
        topology: The switches.
        network: One that is up already, and stays the caller's. None: as the choice says.
        uplinks: Mbit/s of whole frames, of each link between switches and in each direction; the
            links are veth pairs then. None: as fast as they go.

    Attributes:
        network: The Mininet network, or the one given, while there is one.
        page_address: HOST:PORT of the controller's live page, where the choice has one.
        switch_name: For people: what `restart_switch` kills.
    """

    def __init__(
        self,
        choice: LabChoice,
        directory: Path,
        logs: Path,
        topology: LabTopology,
        network: ShapedNetwork | RoutedNetwork | None = None,
        uplinks: float | None = None,
    ) -> None:
        if topology.is_tree and choice.network == "udp":
            raise LabError("TREE requires NET=local or NET=mininet: switches have no UDP links")
        super().__init__(Parts(topology.text), directory, logs)
        self.topology = topology
        first = {"star": "the switch", "side-by-side": "switch a", "tree": "the root switch"}
        self.switch_name = first[topology.kind]
        self.network: MininetNetwork | ShapedNetwork | RoutedNetwork | None = network
        self.controller_address = f"unix:{directory / 'controller.sock'}"
        self.control = ControlClient(self.controller_address)
        self.page_address: str | None = None
        self._choice = choice
        self._directory = directory
        self._uplinks = uplinks
        self._undo = ExitStack()

    def show_page(self) -> str:
        """Open the live page, if there is one; return a line about it, or ""."""
        return live_page.show(self.page_address) if self.page_address else ""

    def switches(self) -> Sequence[pb.Switch]:
        """Return what the controller knows of its switches."""
        control = self.control
        return control.call(control.stub.ListSwitches, pb.ListSwitchesRequest()).switches

    def counters(self) -> list[dict[str, int]]:
        """Return how many frames of each switch had each outcome, without zeros."""
        control = self.control
        answers = (
            control.call(control.stub.GetCounters, pb.GetCountersRequest(switch=switch.name))
            for switch in self.switches()
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
        refresh_program()
        rows, links = self._rows(), self._links()
        self.parts = parts_of(self.topology, rows, self._launcher, self._directory, links)
        self.parts.variables[variables.CONTROLLER] = self.controller_address
        serve = self.parts.serve
        serve += serve_options(self.controller_address, slots=self._first.slots)
        if self._choice.web:
            self.page_address = live_page.free_address()
            serve += ["--http", self.page_address]
        super().start()

    def _rows(self) -> list[PortRow]:
        """Make the ports of all ranks."""
        choice, ranks, count = self._choice, self.topology.ranks, self.topology.rows
        if isinstance(self.network, RoutedNetwork):
            return [UdpPorts(self.network.switch_address, ranks)]
        if choice.network == "mininet" and self.network is None:
            own = MininetNetwork(ranks, choice.bandwidth, count)
            self.network = self._undo.enter_context(own)
        if self.network is not None:
            return [self.network.row(number) for number in range(count)]
        if choice.network == "udp":
            return [udp_ports(ranks) for _ in range(count)]
        if choice.switch == "embedded":
            return unix_rows(self.topology, self._directory)
        veths = [self._undo.enter_context(VethPorts(ranks)) for _ in range(count)]
        return [PortRow(one.switch_side, one.interface) for one in veths]

    def _links(self) -> Mapping[str, tuple[str, str]] | None:
        """Make the links of a tree; None: they are Unix sockets, which the switches make."""
        by_socket = self._choice.network != "mininet" and self._choice.switch == "embedded"
        names = [node.name for node in self.topology.nodes if node.parent]
        if not names or (by_socket and self._uplinks is None):
            return None
        veths = self._undo.enter_context(VethPorts(len(names)))
        upper, lower = veths.switch_side.values(), veths.worker_side.values()
        if self._uplinks is not None:
            set_rate([([], end) for end in (*upper, *lower)], self._uplinks)
        return dict(zip(names, zip(upper, lower, strict=True), strict=True))

    def _launcher(self, directory: Path, ports: Mapping[int, str]) -> SwitchLauncher:
        launcher = self._choice.launcher(directory, ports)
        if isinstance(self.network, ShapedNetwork | RoutedNetwork):
            launcher.prefix = self.network.switch_prefix
        return launcher

    def restart_switch(self, killed: Callable[[], None]) -> None:
        """Kill the first switch as a crash would, call `killed`, and return when the next one
        serves P4Runtime."""
        self._first.kill()
        killed()
        self.start_switch(self.topology.nodes[0].name)
        self._first.wait_ready()

    def restart_controller(self, killed: Callable[[], None]) -> None:
        """Kills the controller, calls `killed`, and starts the next one."""
        assert self.controller is not None
        self.processes.kill(self.controller)
        killed()
        self.start_controller()

    def wait_ready(
        self, timeout: float = READY_TIMEOUT, *, may_finish: Sequence[ChildProcess] = ()
    ) -> None:
        """As that of `Services`; prints what the first switch's log says about slow ways."""
        super().wait_ready(timeout, may_finish=may_finish)
        slow_paths.tell([self._first.log])

    def variables(self) -> dict[str, str]:
        """The environment by which :func:`p4reduce.init` finds switch and controller."""
        return dict(self.parts.variables)

    @property
    def switch_pid(self) -> int | None:
        """The first switch's process."""
        return self._first.pid

    def rank_command(self, rank: int, command: list[str]) -> list[str]:
        """Return ``command`` so that it runs where this rank's worker belongs."""
        return command if self.network is None else [*self.network.prefix(rank), *command]

    @property
    def _first(self) -> SwitchLauncher:
        return next(iter(self.parts.switches.values()))

    def __enter__(self) -> System:
        return self

    def __exit__(self, *error: object) -> None:
        with self._undo:
            self.control.close()
            self.close()
            for number, (name, switch) in enumerate(self.parts.switches.items()):
                mark = f"-{name}" if number else ""
                for capture in switch.directory.glob("*.pcap"):
                    shutil.move(capture, self._logs / f"{capture.stem}{mark}{capture.suffix}")
        self.network = None


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
