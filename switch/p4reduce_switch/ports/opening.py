# SPDX-License-Identifier: Apache-2.0
"""Opens the ports that a command line asks for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.core import Core
from p4reduce_switch.ports.place import PortOptions, PortSpec
from p4reduce_switch.ports.port import Port

__all__ = ["open_ports"]


def open_ports(
    specs: Sequence[PortSpec],
    *,
    capture_dir: Path | None = None,
    capture_by_direction: bool = False,
    udp_key: bytes = b"",
    core: Core | None = None,
) -> list[Port]:
    """Open ports.

    Args:
        capture_dir: where each port's frames are written, or None.
        capture_by_direction: into two files each, as BMv2 does, instead of one.
        udp_key: which workers at UDP ports have to know; empty: none.
        core: whose they are; None: the switch's only one.

    Raises:
        PortError: a port cannot be opened; the others are closed again.
    """
    captures = None if capture_dir is None else Captures(capture_dir, capture_by_direction)
    options = PortOptions(captures, udp_key, core)
    with ExitStack() as undo:
        ports: list[Port] = []
        for spec in specs:
            ports.append(spec.place.open(spec, options))
            undo.callback(ports[-1].close)
        undo.pop_all()
        return ports
