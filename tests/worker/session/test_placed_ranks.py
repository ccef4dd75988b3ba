# SPDX-License-Identifier: Apache-2.0
"""Ranks of a long collective are bound to CPUs for its time, and not after it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from p4reduce.communicator import Communicator
from p4reduce.machine_code import native_library
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from worker_system import running_system, wait_for

CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pytestmark = [
    pytest.mark.skipif(native_library() is None, reason="there is no machine code here"),
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]

RANKS, SLOTS, ROUNDS = 4, 8, 20
TENSOR = np.ones(ROUNDS * SLOTS * 256, np.float32)


def are_bound() -> bool:
    """Whether a thread of this process may run on fewer CPUs than before."""
    threads = (int(task.name) for task in Path("/proc/self/task").iterdir())
    return any(os.sched_getaffinity(thread) != CPUS for thread in threads)


def test_bound_while_the_last_rank_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4reduce_native.loop.usable_cpus", lambda: RANKS // 2)

    def work(comm: Communicator) -> set[int]:
        comm.allreduce(TENSOR)  # after which all know what the switch wishes
        if comm.rank == RANKS - 1:
            wait_for(are_bound, "one that waits is bound")
        assert (comm.allreduce(TENSOR) == RANKS).all()
        return os.sched_getaffinity(0)

    with running_system(lambda place: EmbeddedSwitch(place, RANKS), ports=RANKS) as system:
        assert system.run(RANKS, work, slots=SLOTS) == [CPUS] * RANKS
        wait_for(lambda: not are_bound(), "none is bound any more")
