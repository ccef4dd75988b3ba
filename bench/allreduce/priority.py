# SPDX-License-Identifier: Apache-2.0
"""How long does a small all-reduce take beside a large one that was called before it?

Paired in one run: each round has the small one urgent and not, in random order, each beside a large
one of its own, and once with nothing else under way. The large ones show what it costs them, and
those of a second communicator without urgent slots what it costs to keep some.

    python -m bench.allreduce.priority [--workers 2] [--megabytes 64] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import UnavailableError

from bench.machine import describe, machine
from bench.ranks import run_ranks

SMALL = 4096  # bytes
HEAD_START = 0.02  # seconds that the large one has
SEED = 7
TIMEOUT = 600.0  # seconds
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"

URGENT, BULK, ALONE = "small, urgent", "small, not urgent", "small, alone"
BESIDE_URGENT, BESIDE_BULK = "large, small one urgent", "large, small one not urgent"
WITHOUT = "large, no slots kept"
ALL = (ALONE, URGENT, BULK, BESIDE_URGENT, BESIDE_BULK, WITHOUT)


@dataclass(frozen=True)
class Result:
    """Times in milliseconds, of the slowest rank."""

    name: str
    median_ms: float
    p90_ms: float


def rounds(report: Path, megabytes: int, slots: int, urgent: int, repetitions: int) -> None:
    """What each rank does: leaves its times."""
    rng = np.random.default_rng(SEED)  # the same order on all ranks
    times: dict[str, list[float]] = {what: [] for what in ALL}
    large = np.ones(megabytes << 18, np.float32)
    out = np.empty_like(large)
    small = np.ones(SMALL // 4, np.float32)
    with (
        p4reduce.init(slots=slots, urgent_slots=urgent, timeout=TIMEOUT) as comm,
        comm.dup(urgent_slots=0) as without,
    ):

        def alone() -> None:
            start = time.perf_counter()
            comm.allreduce(small, priority="urgent")
            times[ALONE].append(time.perf_counter() - start)

        def large_alone() -> None:
            start = time.perf_counter()
            without.allreduce(large, out=out)
            times[WITHOUT].append(time.perf_counter() - start)

        def beside(priority: str, what: str, others: str) -> None:
            start = time.perf_counter()
            handle = comm.allreduce_async(large, out=out)
            time.sleep(HEAD_START)
            called = time.perf_counter()
            comm.allreduce(small, priority=priority)
            times[what].append(time.perf_counter() - called)
            handle.wait()
            times[others].append(time.perf_counter() - start)

        works = (
            alone,
            large_alone,
            lambda: beside("urgent", URGENT, BESIDE_URGENT),
            lambda: beside("bulk", BULK, BESIDE_BULK),
        )
        for number in range(repetitions + 1):
            for index in rng.permutation(len(works)):
                comm.barrier()
                works[index]()
            if not number:
                for some in times.values():
                    some.clear()  # the first round has pages to touch
    report.write_text(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--urgent", type=int, default=8, help="slots that are kept")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    numbers = (options.megabytes, options.slots, options.urgent, options.repetitions)
    if options.report is not None:
        rounds(options.report, *numbers)
        return
    names = ("--megabytes", "--slots", "--urgent", "--repetitions")
    arguments = [text for pair in zip(names, map(str, numbers), strict=True) for text in pair]
    script = ["-m", "bench.allreduce.priority", *arguments]
    try:
        reports = run_ranks(choose(options.switch, "local"), options.workers, script, TIMEOUT)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    results = []
    for name in ALL:
        slowest = np.max([report[name] for report in reports], axis=0) * 1e3
        results.append(Result(name, float(np.median(slowest)), float(np.percentile(slowest, 90))))
    host = machine()
    print(describe(host))
    print(
        f"{options.workers} workers, {options.megabytes} MB beside {SMALL:,} bytes, "
        f"{options.slots} slots of which {options.urgent} are kept; {options.repetitions} rounds"
    )
    for result in results:
        print(f"{result.name:30} {result.median_ms:9.2f} ms, p90 {result.p90_ms:9.2f} ms")
    if options.json is not None:
        rows = [asdict(result) for result in results]
        options.json.write_text(json.dumps({"machine": host, "results": rows}))


if __name__ == "__main__":
    main()
