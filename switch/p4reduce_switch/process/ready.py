# SPDX-License-Identifier: Apache-2.0
"""How a switch reports that it is ready, and its counts when it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_common.files import named

from p4reduce_switch.process.settings import StartError, SwitchSettings

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.listen_address import GrpcAddress


def beside(ready_file: Path) -> Path:
    """Return the path of the temporary file that is renamed to the ready file, so nobody reads half
    of it."""
    return ready_file.with_name(f".{ready_file.name}.{os.getpid()}")


def announce(
    settings: SwitchSettings,
    ports: Mapping[int, str],
    address: GrpcAddress,
    metrics_port: int | None = None,
    cores: Sequence[Mapping[str, int]] = (),
) -> str:
    """Write the ready file and the ready line, and return the message for the log.

    Args:
        ports: by number, as text.
        address: of P4Runtime.
        cores: process and device of each core, if there are several.

    Raises:
        StartError: the file cannot be written.
    """
    facts: dict[str, object] = {
        "pid": os.getpid(),
        "grpc_addr": str(address),
        "device_id": settings.device_id,
        "ports": {str(number): port for number, port in ports.items()},
    }
    if cores:
        facts["cores"] = [dict(core) for core in cores]
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
        raise StartError(f"cannot report that the switch is ready: {error}") from None
    cpu = "none" if settings.cpu_port is None else settings.cpu_port
    devices = f"device {settings.device_id}"
    if cores:
        devices = f"devices {settings.device_id} to {cores[-1]['device_id']}, one of each core"
    return (
        f"{settings.name} ready: P4Runtime on {address}, {devices}, ports "
        f"{', '.join(ports.values()) or 'none'}, CPU port {cpu}"
        + (f", http://127.0.0.1:{metrics_port}/metrics" if metrics_port is not None else "")
    )


def summary(counts: dict[str, dict[str, int]]) -> str:
    """Return the counts in one line: always those of ports, others if they are not zero."""
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
