# SPDX-License-Identifier: Apache-2.0
"""Where the controller listens: one default for the daemon, its CLI and the workers."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

ENVIRONMENT = "P4REDUCE_CONTROLLER"


def default_address() -> str:
    """Return the controller's gRPC address when none is given.

    `$P4REDUCE_CONTROLLER` if set, else a Unix socket in `$XDG_RUNTIME_DIR/p4reduce`, else one in a
    directory of this user's own under /tmp.
    """
    if given := os.environ.get(ENVIRONMENT):
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(runtime, "p4reduce") if runtime else Path("/tmp", f"p4reduce-{os.getuid()}")
    return f"unix:{directory / 'controller.sock'}"


def is_local(address: str) -> bool:
    """Whether only this machine can reach a gRPC address: a Unix socket, or loopback."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
