# SPDX-License-Identifier: Apache-2.0
"""Starts the embedded switch, p4reduce-switch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from p4reduce_lab.switches.launch import CPU_PORT, DEVICE_ID, SwitchLauncher


class EmbeddedSwitch(SwitchLauncher):
    """The embedded switch as a process.

    Args:
        directory: see `SwitchLauncher`.
        ports: how many, numbered from 1, each a Unix socket in `directory`; or each number's
            interface or unix:PATH.
        pcap: see `SwitchLauncher`.
    """

    name = "embedded"
    slots = 128  # its ports queue 1,024 frames

    def __init__(
        self, directory: Path, ports: int | Mapping[int, str], *, pcap: bool = False
    ) -> None:
        super().__init__(directory, pcap=pcap)
        self._ready_file = directory / "ready"
        self._interface = ""
        if isinstance(ports, int):
            self._interface = f"unix:{directory}/port{{port}}.sock"
            ports = {port: self._interface.format(port=port) for port in range(1, ports + 1)}
        self._ports = dict(ports)

    @property
    def ports(self) -> Mapping[int, str]:
        return self._ports

    @property
    def interface(self) -> str:
        return self._interface

    def _command(self) -> list[str]:
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", self.grpc_address]
        command += ["--device-id", str(DEVICE_ID), "--cpu-port", str(CPU_PORT)]
        command += ["--ready-file", str(self._ready_file)]
        for port, where in self._ports.items():
            command += ["--port", f"{port}={where}"]
        if self._pcap:
            command += ["--pcap", str(self.directory)]
        return command

    def _is_ready(self) -> bool:
        return self._ready_file.exists()
