# SPDX-License-Identifier: Apache-2.0
"""Threads of processes: how many there are for numpy's linear algebra, and what each computes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def single_thread_variables() -> dict[str, str]:
    """Return the environment for one thread, as torchrun sets it, unless the user has set another
    number."""
    return {name: os.environ.get(name, "1") for name in VARIABLES}


def thread_seconds(pid: int | str = "self") -> dict[str, float]:
    """Return the processor seconds of each thread of a process, by id; {} if it has ended."""
    try:
        tasks = list(Path("/proc", str(pid), "task").iterdir())
    except OSError:
        return {}
    seconds = {}
    for task in tasks:
        with contextlib.suppress(OSError):  # of a thread that has ended meanwhile
            # In nanoseconds, where stat has hundredths of a second.
            seconds[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds
