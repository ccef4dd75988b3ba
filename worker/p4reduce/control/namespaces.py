# SPDX-License-Identifier: Apache-2.0
"""Which namespace of which kernel this process is in. Names of hosts do not tell."""

from __future__ import annotations

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = Path("/proc/self/ns")


def namespace_id(kind: str) -> str:
    """Return what processes in the same namespace of the same kernel share, and no others.

    Args:
        kind: "net", or "pid": processes that share it see each other by their numbers.

    It is empty where the kernel is not Linux.
    """
    try:
        return f"{_BOOT.read_text().strip()}/{(_NAMESPACES / kind).stat().st_ino}"
    except OSError:
        return ""
