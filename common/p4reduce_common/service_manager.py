# SPDX-License-Identifier: Apache-2.0
"""Tells systemd, or another program that has set NOTIFY_SOCKET, that a service is ready or
stopping."""

from __future__ import annotations

import contextlib
import os
import socket

__all__ = ["notify"]


def notify(*assignments: str) -> None:
    """Send lines such as "READY=1", as sd_notify(3) does.

    Nothing happens without NOTIFY_SOCKET. A manager that does not listen is no reason to fail.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    if path.startswith("@"):
        path = "\0" + path[1:]  # of the abstract namespace
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager,
    ):
        manager.settimeout(1.0)
        manager.sendto("\n".join(assignments).encode(), path)
