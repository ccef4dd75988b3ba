# SPDX-License-Identifier: Apache-2.0
"""How a switch tells that it is ready, and what it has done at its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_common.files import named

from p4reduce_switch.process.settings import StartError, SwitchSettings

if TYPE_CHECKING:
    from p4reduce_switch.dataplane import DataPlane
    from p4reduce_switch.p4runtime.listen_address import GrpcAddress

__all__ = ["announce", "beside", "summary"]


def beside(ready_file: Path) -> Path:
    """What is renamed to the ready file, so that nobody reads half of it."""
    return ready_file.with_name(f".{ready_file.name}.{os.getpid()}")


def announce(
    settings: SwitchSettings,
    dataplane: DataPlane,
    address: GrpcAddress,
    metrics_port: int | None = None,
) -> str:
    """Write the ready file and the ready line, and return what to say.

    Raises:
        StartError: nobody can be told.
    """
    facts = {
        "pid": os.getpid(),
        "grpc_addr": str(address),
        "device_id": settings.device_id,
        "ports": {str(n): port.description for n, port in dataplane.ports.items()},
    }
    if metrics_port is not None:
        facts["metrics_port"] = metrics_port
    state = json.dumps(facts)
    try:
        if settings.ready_file is not None:
            partial = beside(settings.ready_file)
            with named(settings.ready_file):
                partial.write_text(state + "\n")
            partial.replace(settings.ready_file)
        if settings.ready_fd is not None:
            with os.fdopen(settings.ready_fd, "w") as stream:
                stream.write(state + "\n")
    except OSError as error:
        raise StartError(f"cannot tell that the switch is ready: {error}") from None
    ports = ", ".join(port.description for port in dataplane.ports.values()) or "none"
    cpu = "none" if dataplane.cpu_port is None else dataplane.cpu_port
    return (
        f"{settings.name} ready: P4Runtime on {address}, device {settings.device_id}, ports "
        f"{ports}, CPU port {cpu}"
        + (f", http://127.0.0.1:{metrics_port}/metrics" if metrics_port is not None else "")
    )


def summary(counts: dict[str, dict[str, int]]) -> str:
    """The counts in one line; those of ports always, others where they are not zero."""
    parts = []
    for name, values in counts.items():
        shown = [
            f"{key}={value}"
            for key, value in values.items()
            if value or key in ("rx_frames", "tx_frames")
        ]
        if shown:
            parts.append(f"{name}: {' '.join(shown)}")
    return "; ".join(parts) or "no traffic"
