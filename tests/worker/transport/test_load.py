# SPDX-License-Identifier: Apache-2.0
"""As many ranks and jobs as one switch is meant for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import p4reduce
import pytest
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from worker_system import System, at_once, running_system, wait_for

RANKS = 64
JOBS = 16
# All ranks are threads of this process, and a heartbeat has to wait for its turn.
LEASE = 60.0  # seconds

# A rank of 64 or 16 jobs at once take all of both cores for a while.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def large() -> Iterator[System]:
    """A switch with a port for each of 64 ranks."""
    with running_system(
        lambda place: EmbeddedSwitch(place, RANKS), ports=RANKS, lease=LEASE
    ) as running:
        yield running


def test_64_ranks_in_one_job(large: System) -> None:
    rng = np.random.default_rng(64)
    arrays = rng.integers(-(1 << 24), 1 << 24, (RANKS, 20 * 256 + 3), np.int32)
    exact = arrays.sum(axis=0)
    sums = large.run(RANKS, lambda comm: comm.allreduce(arrays[comm.rank]), slots=16)
    assert all(np.array_equal(each, exact) for each in sums)
    wait_for(lambda: large.slots_free() == 1024, "all slots are free again")


def test_16_jobs_at_once(large: System) -> None:
    """They have the switch's slots to the last one, and each its own sums."""
    world = RANKS // JOBS

    def rank(job: int, rank: int) -> tuple[float, int]:
        with large.init(
            rank, world, f"job-{job}", first_port=1 + world * job, slots=1024 // JOBS
        ) as comm:
            # Nobody begins before all jobs have their slots, and nobody leaves before.
            together.wait()
            data = np.full(100 * 256, 100 * job + rank, np.float32)
            total = comm.allreduce(data)
            assert (total == total[0]).all()
            return float(total[0]), large.slots_free()

    together = threading.Barrier(RANKS, timeout=120.0)
    places = [(job, number) for job in range(JOBS) for number in range(world)]
    results = at_once([lambda place=place: rank(*place) for place in places])
    for (job, _), (total, _) in zip(places, results, strict=True):
        assert total == world * 100 * job + sum(range(world))
    assert min(free for _, free in results) == 0, "they were not all there at once"
    wait_for(lambda: large.slots_free() == 1024, "all slots are free again")


def test_a_job_too_many(large: System) -> None:
    """It is told, at once, and disturbs nobody."""
    with large.init(0, 1, "all", slots=1024) as comm:
        with pytest.raises(p4reduce.AdmissionError, match="no 1 slots in a row"):
            large.init(0, 1, "none", first_port=2, slots=1)
        assert comm.allreduce(np.ones(300, np.int32)).tolist() == [1] * 300
