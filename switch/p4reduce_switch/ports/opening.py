# SPDX-License-Identifier: Apache-2.0
"""Opens the ports that a command line asks for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.packet import PacketPort
from p4reduce_switch.ports.port import Port, PortSpec
from p4reduce_switch.ports.udp import UdpPort
from p4reduce_switch.ports.unix import UnixCallingPort, UnixPort

__all__ = ["open_ports"]


def open_ports(
    specs: Sequence[PortSpec],
    *,
    capture_dir: Path | None = None,
    capture_by_direction: bool = False,
    udp_key: bytes = b"",
) -> list[Port]:
    """Open ports.

    Args:
        capture_dir: where each port's frames are written, or None.
        capture_by_direction: into two files each, as BMv2 does, instead of one.
        udp_key: which workers at UDP ports have to know; empty: none.

    Raises:
        PortError: a port cannot be opened; the others are closed again.
    """
    captures = None if capture_dir is None else Captures(capture_dir, capture_by_direction)
    with ExitStack() as undo:
        ports: list[Port] = []
        for spec in specs:
            ports.append(_open(spec, captures, udp_key))
            undo.callback(ports[-1].close)
        undo.pop_all()
        return ports


def _open(spec: PortSpec, captures: Captures | None, udp_key: bytes) -> Port:
    if spec.udp_address is not None:
        return UdpPort(spec, udp_key, captures)
    if spec.interface is not None:
        return PacketPort(spec, captures)
    return (UnixCallingPort if spec.calls else UnixPort)(spec, captures)
