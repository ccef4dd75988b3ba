# SPDX-License-Identifier: Apache-2.0
"""Opens the ports and the data plane that serves them: in C where that can be, else in Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import runtime

from p4reduce_switch.dataplane import DataPlane
from p4reduce_switch.dataplane_thread import DataPlaneThread
from p4reduce_switch.native_dataplane import NativeDataPlane
from p4reduce_switch.pipeline_choice import Engine
from p4reduce_switch.ports.batch import FrameBatches
from p4reduce_switch.ports.native import (
    NativeCallingPort,
    NativePacketPort,
    NativePort,
    NativeUdpPort,
    NativeUnixPort,
)
from p4reduce_switch.ports.packet import PacketPort
from p4reduce_switch.ports.pcap import CapturedPort, Captures
from p4reduce_switch.ports.port import OpenPort, Port, PortSpec
from p4reduce_switch.ports.udp import UdpPort
from p4reduce_switch.ports.unix import UnixCallingPort, UnixPort

__all__ = ["Engine", "open_data_plane"]

log = logging.getLogger(__name__)

_PortT = TypeVar("_PortT", bound=OpenPort)


def open_data_plane(
    specs: Sequence[PortSpec],
    *,
    engine: Engine = "auto",
    cpu_port: int | None = None,
    capture_dir: Path | None = None,
    capture_by_direction: bool = False,
    udp_key: bytes = b"",
) -> DataPlaneThread:
    """Open the ports of a data plane, which its `stop` closes.

    Args:
        engine: "auto" takes Python where there is no compiled library, and logs why.
        capture_dir: where each port's frames are written, or None.
        capture_by_direction: into two files each, as BMv2 does, instead of one.
        udp_key: which workers at UDP ports have to know; empty: none.

    Raises:
        PortError: a port cannot be opened; the others are closed again.
        NativeUnavailableError: the engine is "native", and there is no compiled library.
    """
    captures = None if capture_dir is None else Captures(capture_dir, capture_by_direction)
    if engine != "python":
        try:
            runtime()
        except NativeUnavailableError as error:
            if engine == "native":
                raise
            log.warning("the data plane runs in Python, many times slower: %s", error)
        else:
            ports = _open(specs, partial(_native_port, captures, udp_key))
            return NativeDataPlane(ports, cpu_port=cpu_port)
    return DataPlane(
        _open(specs, partial(_python_port, FrameBatches(), captures, udp_key)), cpu_port=cpu_port
    )


def _open(specs: Sequence[PortSpec], make: Callable[[PortSpec], _PortT]) -> list[_PortT]:
    with ExitStack() as undo:
        ports = []
        for spec in specs:
            ports.append(make(spec))
            undo.callback(ports[-1].close)
        undo.pop_all()
        return ports


def _native_port(captures: Captures | None, udp_key: bytes, spec: PortSpec) -> NativePort:
    if spec.udp_address is not None:
        return NativeUdpPort(spec, udp_key, captures)
    if spec.interface is not None:
        return NativePacketPort(spec, captures)
    return (NativeCallingPort if spec.calls else NativeUnixPort)(spec, captures)


def _python_port(
    batches: FrameBatches, captures: Captures | None, udp_key: bytes, spec: PortSpec
) -> Port:
    port: Port
    if spec.udp_address is not None:
        port = UdpPort(spec, udp_key)
    elif spec.interface is not None:
        port = PacketPort(spec, batches)
    else:
        port = (UnixCallingPort if spec.calls else UnixPort)(spec, batches)
    return port if captures is None else CapturedPort(port, captures)
