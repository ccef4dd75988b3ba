# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made on, to be kept beside it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in GB, kernel, Python, numpy."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def describe(figures: dict[str, Any]) -> str:
    """One line for the top of a report."""
    return (
        f"{figures['cpu']}, {figures['cores']} cores, {figures['memory_gb']} GB; "
        f"Linux {figures['kernel']}, Python {figures['python']}, numpy {figures['numpy']}"
    )
