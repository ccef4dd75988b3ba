# SPDX-License-Identifier: Apache-2.0
"""The settings of a switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_switch.p4runtime.listen_address import GrpcAddress
from p4reduce_switch.ports.core import Core
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.state.queue_settings import QueueSettings

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles
    from p4reduce_switch.pipeline_choice import Engine

DEFAULT_DROP_PORT = 511


class StartError(Exception):
    """The switch cannot start, or cannot continue. The message is for the user."""


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """The settings of a switch.

    Attributes:
        name: of the command, for messages.
        pipeline_file: a program to load at the start, or None. Without `p4info_file` it forwards,
            but a controller must load a program before it can write entries.
        entries_file: p4c's file of the program's entries, or None.
        udp_key_file: the file with the key of UDP ports, or None.
        capture_dir: the directory for captures, or None; `capture_by_direction`: with
            two files per port.
        dump_c: the file for the generated C, or None.
        debug_path: the socket of the debugger, or None.
        metrics_port: the loopback port of /metrics (0: a free one), or None.
        ready_file, ready_fd: the file and the descriptor to notify when ready, or None.
        core: the number among several data planes with these ports.
    """

    name: str
    address: GrpcAddress
    ports: Sequence[PortSpec] = ()
    device_id: int = 1
    cpu_port: int | None = None
    drop_port: int = DEFAULT_DROP_PORT
    queues: QueueSettings = field(default_factory=QueueSettings)
    engine: Engine = "auto"
    tls: ServerTlsFiles | None = None
    udp_key_file: Path | None = None
    capture_dir: Path | None = None
    capture_by_direction: bool = False
    pipeline_file: Path | None = None
    p4info_file: Path | None = None
    entries_file: Path | None = None
    dump_c: Path | None = None
    debug_path: Path | None = None
    metrics_port: int | None = None
    ready_file: Path | None = None
    ready_fd: int | None = None
    core: Core = field(default_factory=Core)

    def check_ports(self, option: str, cpu_option: str) -> None:
        """Refuse ports that exclude each other. Raises ValueError that names the options."""
        seen: dict[object, PortSpec] = {}
        for spec in self.ports:
            if spec.number == self.cpu_port:
                raise ValueError(f"{option} {spec}: {self.cpu_port} is the CPU port ({cpu_option})")
            if spec.number == self.drop_port:
                raise ValueError(f"{option} {spec}: what is sent to port {spec.number} is dropped")
            for key in (spec.number, spec.place):
                if key in seen and (key is not spec.place or spec.place.is_unique):
                    raise ValueError(f"{option} {spec} and {option} {seen[key]} collide")
                seen[key] = spec
