# SPDX-License-Identifier: Apache-2.0
"""All-reduce goodput of real worker processes through a real switch process, over sizes.

Goodput is a tensor's bytes by the time that one all-reduce of it takes (the median over
repetitions of the slowest rank's time), so it compares with a link's rate: a worker both sends and
receives that much. Switch, controller and all workers share this machine's cores. With --bandwidth
each worker is a Mininet host with a link of that rate, and the share of the link's bound is shown:
the time that all frames of a tensor take on it, headers included.

    python -m bench.allreduce.allreduce [--workers 4] [--switch embedded|bmv2] [--json FILE]
    python -m bench.allreduce.allreduce --bandwidth 100 --sizes 16777216 --slots 128 --workers 8
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
from p4reduce.wire.format import PAYLOAD_FRAME_BYTES
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import UnavailableError

from bench.machine import describe, machine
from bench.ranks import run_ranks

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)  # bytes
BLOCK = 1024
DTYPES = ("float32", "int32")
# BMv2 queues 64 frames a port, and a result may be two: more slots than that would lose some.
SLOTS = {"embedded": (32, 128), "bmv2": (32,)}
SECONDS = 1.5  # of repetitions for each size
MAX_REPETITIONS = 400
TIMEOUT = 300.0  # seconds; for the whole sweep
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


@dataclass(frozen=True)
class Result:
    """One size. Times in milliseconds, goodput in Mbit/s of tensor data a worker."""

    name: str
    bytes: int
    repetitions: int
    median_ms: float
    p90_ms: float
    goodput_mbit_s: float
    contributions_per_second: float
    retransmissions: int
    share_of_bound: float | None = None


def sweep(report: Path, sizes: list[int], slots: int) -> None:
    """What each rank does: all-reduces every size repeatedly and leaves its times."""
    times: dict[str, list[float]] = {}
    repeated: dict[str, int] = {}
    with p4reduce.init(slots=slots) as comm:
        for dtype in DTYPES:
            for size in sizes:
                tensor = np.ones(size // 4, dtype)
                out = np.empty_like(tensor)
                key = f"{dtype} {size}"
                before = comm.stats.retransmissions
                # All ranks must agree how often, so they sum up how long one takes.
                comm.barrier()
                start = time.perf_counter()
                comm.allreduce(tensor, out=out)
                once = np.array([time.perf_counter() - start])
                slowest = comm.allreduce(once)[0] / comm.size
                repetitions = int(min(MAX_REPETITIONS, max(5, SECONDS / slowest)))
                samples = []
                for _ in range(repetitions):
                    comm.barrier()
                    start = time.perf_counter()
                    comm.allreduce(tensor, out=out)
                    samples.append(time.perf_counter() - start)
                if not (out == comm.size).all():
                    raise SystemExit(f"{key}: the sum is wrong")
                times[key] = samples
                repeated[key] = comm.stats.retransmissions - before
    report.write_text(json.dumps({"times": times, "retransmissions": repeated}))


def measure(
    switch: str,
    workers: int,
    sizes: list[int],
    slots: int,
    bandwidth: float | None = None,
    switches: int = 1,
) -> list[Result]:
    """Runs the sweep in ``workers`` processes over switches of its own. The job gets ``slots``
    slots of each: so many blocks are under way at once. ``bandwidth``: of each link, in Mbit/s."""
    arguments = ["--slots", str(slots), "--sizes", *map(str, sizes)]
    choice = choose(switch, "local" if bandwidth is None else "mininet", bandwidth=bandwidth)
    links = "" if bandwidth is None else f", {bandwidth:g} Mbit/s"
    number = "" if switches == 1 else f"{switches} x "
    script = ["-m", "bench.allreduce.allreduce", *arguments]
    reports = run_ranks(choice, workers, script, TIMEOUT, switches)
    results = []
    for key in reports[0]["times"]:
        dtype, size = key.split()
        slowest = np.max([report["times"][key] for report in reports], axis=0)
        median = float(np.median(slowest))
        blocks = -(-int(size) // BLOCK)
        results.append(
            Result(
                name=f"{number}{switch}{links}, {workers} workers, {slots} slots, {dtype}",
                bytes=int(size),
                repetitions=len(slowest),
                median_ms=median * 1e3,
                p90_ms=float(np.percentile(slowest, 90)) * 1e3,
                goodput_mbit_s=int(size) * 8 / median / 1e6,
                contributions_per_second=blocks * workers / median,
                retransmissions=sum(report["retransmissions"][key] for report in reports),
                share_of_bound=bandwidth
                and blocks * PAYLOAD_FRAME_BYTES * 8 / (bandwidth * 1e6) / median,
            )
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="in bytes")
    parser.add_argument("--slots", type=int, nargs="+", help="default: 32, and 128 if embedded")
    parser.add_argument("--bandwidth", type=float, help="of each link, in Mbit/s; takes root")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        sweep(options.report, options.sizes, options.slots[0])
        return
    try:
        results = [
            result
            for slots in options.slots or SLOTS[options.switch]
            for result in measure(
                options.switch, options.workers, options.sizes, slots, options.bandwidth
            )
        ]
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    host = machine()
    print(describe(host))
    print(f"{'':56} {'bytes':>9} {'median ms':>10} {'p90 ms':>9} {'Mbit/s':>8} {'contrib/s':>9}")
    for result in results:
        print(
            f"{result.name:56} {result.bytes:9,} {result.median_ms:10.2f} {result.p90_ms:9.2f} "
            f"{result.goodput_mbit_s:8.1f} {result.contributions_per_second:9,.0f}"
            + (f" {result.share_of_bound:6.1%}" if result.share_of_bound else "")
        )
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
