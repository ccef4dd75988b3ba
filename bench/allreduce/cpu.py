# SPDX-License-Identifier: Apache-2.0
"""CPU time of an all-reduce, of all worker processes and the switch together, and what repeats.

Where processes share two cores, half of that time is the least that an all-reduce can take. It says
more than the wall clock where other programs run on the machine, though they lengthen it too.

    python -m bench.allreduce.cpu [--sizes 1024 4194304] [--workers 4] [--slots 128]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce_lab.choice import choose

from bench.machine import describe, machine
from bench.ranks import SWITCH_PID, run_ranks

SECONDS = 3.0  # of all-reduces for each size
WARM_UP = 5
MAX_REPETITIONS = 1000
TIMEOUT = 300.0  # seconds; for all of it


def cpu_seconds(pid: str) -> float:
    """What a process's threads have computed so far."""
    tasks = Path("/proc", pid, "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def rank(report: Path, sizes: list[int], slots: int) -> None:
    """What each rank does: it leaves its figures for each size, times in milliseconds."""
    switch = os.environ[SWITCH_PID]
    figures = {}
    with p4reduce.init(slots=slots) as comm:
        for size in sizes:
            tensor = np.ones(size // 4, np.float32)
            out = np.empty_like(tensor)
            for _ in range(WARM_UP):
                comm.allreduce(tensor, out=out)
            start = time.perf_counter()
            comm.allreduce(tensor, out=out)
            once = np.array([time.perf_counter() - start])
            slowest = comm.allreduce(once)[0] / comm.size
            repetitions = int(min(MAX_REPETITIONS, max(10, SECONDS / slowest)))
            before, cpu, switch_cpu = comm.stats, time.process_time(), cpu_seconds(switch)
            times = []
            for _ in range(repetitions):
                start = time.perf_counter()
                comm.allreduce(tensor, out=out)
                times.append(time.perf_counter() - start)
            cpu, switch_cpu = time.process_time() - cpu, cpu_seconds(switch) - switch_cpu
            after = comm.stats
            if not (out == comm.size).all():
                raise SystemExit(f"{size} bytes: the sum is wrong")
            figures[str(size)] = {
                "median": float(np.median(times)) * 1e3,
                "cpu": cpu / repetitions * 1e3,
                "switch_cpu": switch_cpu / repetitions * 1e3,
                "repeated": after.retransmissions - before.retransmissions,
                "sent": after.frames_sent - before.frames_sent,
            }
    report.write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 1 << 22], help="bytes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        rank(options.report, options.sizes, options.slots)
        return
    arguments = ["--slots", str(options.slots), "--sizes", *map(str, options.sizes)]
    reports = run_ranks(
        choose("embedded", "local"),
        options.workers,
        ["-m", "bench.allreduce.cpu", *arguments],
        TIMEOUT,
    )
    print(describe(machine()))
    print(
        f"{'bytes':>12} {'median':>9} {'CPU, all':>9} {'a worker':>9} {'switch':>9} {'repeated':>9}"
    )
    for size in map(str, options.sizes):
        figures = [report[size] for report in reports]
        median = max(one["median"] for one in figures)
        workers = [one["cpu"] for one in figures]
        switch = figures[0]["switch_cpu"]
        repeated = sum(one["repeated"] for one in figures) / sum(one["sent"] for one in figures)
        print(
            f"{int(size):12,} {median:6.2f} ms {sum(workers) + switch:6.2f} ms "
            f"{np.mean(workers):6.2f} ms {switch:6.2f} ms {repeated:8.2%}"
        )


if __name__ == "__main__":
    main()
