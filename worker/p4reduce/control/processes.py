# SPDX-License-Identifier: Apache-2.0
"""Whether two processes see each other by their numbers."""

from __future__ import annotations

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def process_space() -> str:
    """Return what processes that see each other share: a kernel's boot and a PID namespace of it.

    It is empty where the kernel is not Linux.
    """
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""
