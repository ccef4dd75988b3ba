# SPDX-License-Identifier: Apache-2.0
"""Ranks end their jobs in every way that there is, and no process dies of it.

By `make native-sanitize` C runs under the address sanitizer meanwhile: it tells of memory that
Python has let go of while C still worked on it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fault_system import EMBEDDED, FaultSystem, fault_system_with
from worker_system import DEADLINE

PROGRAM = Path(__file__).with_name("lives.py")
JOBS = 8
SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")

fault_system = fault_system_with(lambda: 60.0, "module")  # sanitized ranks are slow


@pytest.mark.long
@pytest.mark.timeout(4 * DEADLINE)
@EMBEDDED
@pytest.mark.parametrize("world_size", [1, 4])
def test_no_way_to_end_a_job_touches_memory_that_is_gone(
    fault_system: FaultSystem, world_size: int
) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    ranks = []
    for rank in range(world_size):
        variables = {
            **os.environ,
            "P4REDUCE_CONTROLLER": fault_system.controller,
            "P4REDUCE_INTERFACE": fault_system.interface(rank + 1),
            "P4REDUCE_RANK": str(rank),
            "P4REDUCE_WORLD_SIZE": str(world_size),
            # Python's own allocator hides what is freed, and malloc leaves it as it was.
            "PYTHONMALLOC": "malloc",
            "MALLOC_PERTURB_": "0" if SANITIZED else "165",
        }
        command = [sys.executable, "-X", "faulthandler", str(PROGRAM), str(seed), str(JOBS)]
        ranks.append(
            subprocess.Popen(
                command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        written = [rank.communicate(timeout=3 * DEADLINE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, text) in enumerate(zip(ranks, written, strict=True)):
        assert rank.returncode == 0, f"rank {number}, code {rank.returncode}:\n{text[-4000:]}"
        assert "Sanitizer" not in text, text
        assert f"rank {number} ends with" in text
