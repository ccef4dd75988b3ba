# SPDX-License-Identifier: Apache-2.0
"""How long does a small all-reduce take beside a large one that was called before it?

Paired in one run: each round has the small one urgent and not, in random order, each beside a large
one of its own, and once with nothing else under way. The large ones show what it costs them, and
those of a second communicator without urgent slots what it costs to keep some.

    python -m bench.allreduce.priority [--workers 2] [--megabytes 64] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import p4reduce

from bench.measure import drawn, in_turns, slowest, timed
from bench.program import SWITCH, Option, read_options, run, some, tell
from bench.ranks import TIMEOUT, run_ranks

SMALL = 4096  # bytes
HEAD_START = 0.02  # seconds that the large one has
SEED = 7


def rounds(megabytes: int, slots: int, urgent: int, repetitions: int) -> dict[str, list[float]]:
    """What each rank does: returns its seconds."""
    large, small = np.ones(megabytes << 18, np.float32), np.ones(SMALL // 4, np.float32)
    out = np.empty_like(large)
    beside: dict[str, list[float]] = {}  # of the large ones
    with (
        p4reduce.init(slots=slots, urgent_slots=urgent, timeout=TIMEOUT) as comm,
        comm.dup(urgent_slots=0) as without,
    ):

        def both(priority: str, name: str) -> float:
            comm.barrier()
            start = time.perf_counter()
            handle = comm.allreduce_async(large, out=out)
            time.sleep(HEAD_START)
            took = timed(lambda: comm.allreduce(small, priority=priority))
            handle.wait()
            beside.setdefault(f"large, small one {name}", []).append(time.perf_counter() - start)
            return took

        def alone() -> float:
            return timed(lambda: comm.allreduce(small, priority="urgent"), comm.barrier)

        def large_alone() -> float:
            return timed(lambda: without.allreduce(large, out=out), comm.barrier)

        ways: dict[str, Callable[[], float]] = {
            "small, alone": alone,
            "large, no slots kept": large_alone,
            "small, urgent": partial(both, "urgent", "urgent"),
            "small, not urgent": partial(both, "bulk", "not urgent"),
        }
        # The first round has pages to touch.
        times = in_turns(ways, repetitions, warm_up=1, order=drawn(SEED))
    return times | {name: seconds[1:] for name, seconds in beside.items()}


def main() -> None:
    options = read_options(
        __doc__,
        workers=2,
        switch=SWITCH,
        megabytes=64,
        slots=64,
        urgent=Option(8, "slots that are kept"),
        repetitions=10,
    )
    given = some(options, "switch", "megabytes", "slots", "urgent", "repetitions")
    reports = run_ranks(rounds, options.workers, **given)
    times = {name: slowest(reports, name) * 1e3 for name in reports[0]}
    rows = [
        {"name": name, "median_ms": float(np.median(of)), "p90_ms": float(np.percentile(of, 90))}
        for name, of in times.items()
    ]
    tell(
        options,
        rows,
        f"{options.workers} workers, {options.megabytes} MB beside {SMALL:,} bytes, "
        f"{options.slots} slots of which {options.urgent} are kept; {options.repetitions} rounds",
    )


if __name__ == "__main__":
    run(main)
