# SPDX-License-Identifier: Apache-2.0
"""The settings that the parent sends to a core's process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from p4reduce_common.logs import LogFormat

from p4reduce_switch.cores.directory import socket_path
from p4reduce_switch.p4runtime.listen_address import GrpcAddress
from p4reduce_switch.ports.core import Core
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.process.settings import SwitchSettings


@dataclass(frozen=True)
class LogSettings:
    """The log settings of all cores, as for `p4reduce_common.logs.configure`."""

    level: str
    format: LogFormat


@dataclass(frozen=True)
class Order:
    """What a core is to run, and its parent.

    Attributes:
        parent: the process id of its parent.
    """

    settings: SwitchSettings
    log: LogSettings
    parent: int


def settings_of(
    whole: SwitchSettings, core: Core, directory: Path, ready_fd: int
) -> SwitchSettings:
    """Return the settings of one core of a switch.

    Args:
        directory: of its P4Runtime socket, for the parent alone.
        ready_fd: the descriptor by which it tells the parent that it is ready.

    Raises:
        ValueError: a port cannot be shared by several cores.
    """
    first = core.number == 0
    return replace(
        whole,
        name=f"{whole.name} core {core.number}",
        address=GrpcAddress(path=socket_path(directory, core.number)),
        ports=ports_of(whole, core.number),
        device_id=whole.device_id + core.number,
        tls=None,
        capture_dir=whole.capture_dir and whole.capture_dir / f"core{core.number}",
        dump_c=whole.dump_c if first else None,
        metrics_port=None if whole.metrics_port is None else 0,
        ready_file=None,
        ready_fd=ready_fd,
        core=core,
    )


def ports_of(whole: SwitchSettings, core: int) -> list[PortSpec]:
    """Return the places of a switch's ports at a core.

    Raises:
        ValueError: a port cannot be shared by several cores; the message names it.
    """
    return [_at_core(spec, core) for spec in whole.ports]


def _at_core(spec: PortSpec, core: int) -> PortSpec:
    try:
        return PortSpec(spec.number, spec.place.at_core(core))
    except ValueError as error:
        raise ValueError(f"'{spec}' {error}") from None
