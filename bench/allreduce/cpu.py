# SPDX-License-Identifier: Apache-2.0
"""CPU time of an all-reduce, of all worker processes and the switch together, and what repeats.

Where processes share two cores, half of that time is the least that an all-reduce can take. It says
more than the wall clock where other programs run on the machine, though they lengthen it too.

    python -m bench.allreduce.cpu [--sizes 1024 4194304] [--workers 4] [--slots 128]
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import p4reduce

from bench.measure import cpu_seconds, timed
from bench.program import Option, read_options, run, some, tell
from bench.ranks import SWITCH_PID, run_ranks

SECONDS = 3.0  # of all-reduces for each size
WARM_UP = 5
MAX_REPETITIONS = 1000


def rank(sizes: list[int], slots: int) -> list[dict[str, float]]:
    """What each rank does: it returns its figures for each size, times in milliseconds."""
    switch = os.environ[SWITCH_PID]
    figures = []
    with p4reduce.init(slots=slots) as comm:
        for size in sizes:
            tensor = np.ones(size // 4, np.float32)
            out = np.empty_like(tensor)
            call = partial(comm.allreduce, tensor, out=out)
            for _ in range(WARM_UP):
                call()
            typical = comm.allreduce(np.array([timed(call)]))[0] / comm.size
            repetitions = int(min(MAX_REPETITIONS, max(10, SECONDS / typical)))
            before, cpu, switch_cpu = comm.stats, time.process_time(), cpu_seconds(switch)
            times = [timed(call) for _ in range(repetitions)]
            cpu, switch_cpu = time.process_time() - cpu, cpu_seconds(switch) - switch_cpu
            after = comm.stats
            if not (out == comm.size).all():
                raise SystemExit(f"{size} bytes: the sum is wrong")
            figures.append(
                {
                    "median": statistics.median(times) * 1e3,
                    "cpu": cpu / repetitions * 1e3,
                    "switch_cpu": switch_cpu / repetitions * 1e3,
                    "repeated": after.retransmissions - before.retransmissions,
                    "sent": after.frames_sent - before.frames_sent,
                }
            )
    return figures


def row(size: int, ranks: tuple[Any, ...]) -> dict[str, Any]:
    """Return the figures of a size, of those of each rank."""
    workers, switch = [one["cpu"] for one in ranks], ranks[0]["switch_cpu"]
    return {
        "bytes": size,
        "median_ms": max(one["median"] for one in ranks),
        "cpu_of_all_ms": sum(workers) + switch,
        "cpu_of_a_worker_ms": statistics.mean(workers),
        "cpu_of_switch_ms": switch,
        "repeated": sum(one["repeated"] for one in ranks) / sum(one["sent"] for one in ranks),
    }


def main() -> None:
    options = read_options(__doc__, sizes=Option([1 << 10, 1 << 22], "bytes"), workers=4, slots=128)
    reports = run_ranks(rank, options.workers, **some(options, "sizes", "slots"))
    tell(options, map(row, options.sizes, zip(*reports, strict=True)))


if __name__ == "__main__":
    run(main)
