# SPDX-License-Identifier: Apache-2.0
"""Several switches side by side, and one controller that owns them, as one system for a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.networks.mininet_net import MininetNetwork, host_interface, switch_ip
from p4reduce_lab.system import INTERFACE_VARIABLE, System
from p4reduce_lab.topology_file import switch_table


class SideBySideSystem(System):
    """A system as any, whose workers have a port at each of several switches: a, b and so on.

    Args:
        choice, directory, logs, ports: see `System`.
        switches: their number.
    """

    topology = "side-by-side"
    switch_name = "switch a"

    def __init__(
        self, choice: LabChoice, directory: Path, logs: Path, ports: int, switches: int
    ) -> None:
        super().__init__(choice, directory, logs, ports)
        self._names = ascii_lowercase[:switches]

    def start(self) -> None:
        """Start all, as `System` does."""
        self._make_network(len(self._names))
        tables = []
        for number, name in enumerate(self._names):
            ports: int | Mapping[int, str] = self._ports
            stations: Mapping[int, str] = {}
            ip = ""
            if isinstance(self.network, MininetNetwork):
                ports, ip = self.network.ports_of(number), switch_ip(number)
                stations = self.network.stations_of(number)
            launcher = self._start_switch(name, ports, f"switch-{name}.log")
            tables.append(switch_table(name, launcher.grpc_address, self._ports, stations, ip))
        self._write_topology(tables)
        self.start_controller()

    def variables(self) -> dict[str, str]:
        """The environment by which :func:`p4reduce.init` finds all of them."""
        ways = [launcher.interface for launcher in self.launchers.values()]
        if self.network is not None:
            ways = [host_interface(number) for number in range(len(ways))]
        named = (f"{name}={way}" for name, way in zip(self._names, ways, strict=True))
        return {**super().variables(), INTERFACE_VARIABLE: ",".join(named)}
