# SPDX-License-Identifier: Apache-2.0
"""Starts the embedded switch, p4reduce-switch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_lab.switches.launch import CPU_PORT, DEVICE_ID, SwitchLauncher
from p4reduce_lab.switches.udp_ports import UdpPorts
from p4reduce_lab.topology import LabTopology, PortRow

TlsPaths = tuple[Path, Path, Path]
"""Certificate, key and CA."""

# Three runs of as many frames as one call takes (docs/links.md). So many fit into a queue of
# 256 KiB, and one by one into a socket's buffer of the kernel's default size.
_UDP_SLOTS = 3 * 59


class EmbeddedSwitch(SwitchLauncher):
    """The embedded switch as a process.

    Args:
        directory: see `SwitchLauncher`.
        ports: how many, numbered from 1, each a Unix socket in `directory`; or each number's
            interface, unix:PATH or udp:HOST:PORT.
        pcap: see `SwitchLauncher`.
        key_file: the key that workers at UDP ports have to know; None: none.
        captures: a directory for each port's frames instead of `directory`; None: as `pcap` says.
        cores: how many data planes share its ports.
        listen: HOST:PORT of its P4Runtime server; "": a Unix socket in `directory`.
        tls: certificate, key and CA of that server.
    """

    name = "embedded"
    slots: int | str = 128  # a result is at most two frames, and its ports queue 1,024

    def __init__(
        self,
        directory: Path,
        ports: int | Mapping[int, str],
        *,
        pcap: bool = False,
        key_file: Path | None = None,
        captures: Path | None = None,
        cores: int = 1,
        listen: str = "",
        tls: Sequence[Path] = (),
    ) -> None:
        super().__init__(directory, pcap=pcap)
        self._tls = tls if listen else ()
        self.grpc_address = listen or self.grpc_address
        self._captures = captures or (directory if pcap else None)
        self._key_file = key_file
        self._cores = cores
        self._ready_file = directory / "ready"
        if isinstance(ports, int):
            ports = unix_ports(directory, ports)
        if isinstance(ports, PortRow):
            self.interface = ports.interface
        if isinstance(ports, UdpPorts):
            self.slots = _UDP_SLOTS
        self.ports = dict(ports)
        if all(where.startswith("unix:") for where in self.ports.values()):
            self.slots = "auto"  # a ring of shared memory has room for as many frames

    def _command(self) -> list[str]:
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", self.grpc_address]
        command += ["--device-id", str(DEVICE_ID), "--cpu-port", str(CPU_PORT)]
        command += ["--ready-file", str(self._ready_file)]
        for port, where in self.ports.items():
            command += ["--port", f"{port}={where}"]
        if self._tls:
            command += tls_options("--tls", self._tls)
        if self._cores > 1:
            command += ["--cores", str(self._cores)]
        if self._key_file is not None:
            command += ["--udp-key-file", str(self._key_file)]
        if self._captures is not None:
            command += ["--pcap", str(self._captures)]
        return command

    def _is_ready(self) -> bool:
        return self._ready_file.exists()


def unix_ports(directory: Path, count: int) -> PortRow:
    """Return ports that are Unix sockets in a directory."""
    interface = f"unix:{directory}/port{{port}}.sock"
    return PortRow({n: interface.format(port=n) for n in range(1, count + 1)}, interface)


def unix_rows(topology: LabTopology, directory: Path) -> list[PortRow]:
    """Return Unix sockets for all ranks; several switches side by side have a directory each."""
    names = [node.name for node in topology.nodes] if topology.rows > 1 else [""]
    return [unix_ports(directory / name, topology.ranks) for name in names]


def tls_options(prefix: str, tls: Sequence[Path]) -> list[str]:
    """Return the options that name TLS files, such as --switch-tls-cert for "--switch-tls"."""
    named = zip(("cert", "key", "ca"), tls, strict=True)
    return [text for what, file in named for text in (f"{prefix}-{what}", str(file))]
