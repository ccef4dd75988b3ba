# SPDX-License-Identifier: Apache-2.0
"""How long does a step take with one slow rank: plain, with gradient coding, with a deadline?

Ranks sleep where they would compute, so that the machine's cores are no part of the answer. The
slow rank sleeps `factor` times as long. Plain steps, coded ones with each number of copies, and
partial sums are measured in turn in each round, on the ranks that are not slow; "sum" is an
all-reduce of all ranks without computing. In a tree the ranks of a leaf are a group.

    python -m bench.allreduce.late [--workers 8 | --tree 4x2] [--factors 1,2,5] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.late import FractionalRepetition, PartialSums
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.tree import TreeShape, TreeSystem

from bench.machine import describe, machine
from bench.ranks import run_ranks, run_ranks_on

SLOW = 1  # the rank that is
COPIES = (2, 4)
TIMEOUT = 600.0  # seconds
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
SUM, PLAIN, LEAVES, DEADLINE = "sum", "plain", "leaves", "deadline"


@dataclass(frozen=True)
class Result:
    """Seconds per step; `expected` is the same by c, the factor and the sum."""

    factor: float
    way: str
    seconds: float
    expected: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.expected


def rounds(
    report: Path,
    elements: int,
    compute: float,
    factors: list[float],
    steps: int,
    repetitions: int,
    in_tree: bool,
) -> None:
    """What each rank does: leaves its times, of the slow rank as of the others."""
    array = np.ones(elements, np.float32)
    times: dict[str, list[float]] = {}
    with p4reduce.init(timeout=TIMEOUT) as comm:
        limits: dict[str, Any] = {"timeout": TIMEOUT, "history": 10 * steps}
        if in_tree:
            coded = {LEAVES: FractionalRepetition(comm, groups="switches", **limits)}
        else:
            coded = {str(copies): FractionalRepetition(comm, copies, **limits) for copies in COPIES}
        partial = PartialSums(comm, timeout=TIMEOUT, history=10 * steps)

        def measure(name: str, step: Callable[[], object]) -> None:
            comm.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            times.setdefault(name, []).append((time.perf_counter() - start) / steps)

        for number in range(repetitions + 1):
            for factor in factors:
                seconds = compute * (factor if comm.rank == SLOW else 1.0)

                def part(_: int, seconds: float = seconds) -> np.ndarray:
                    time.sleep(seconds)
                    return array

                def plain(seconds: float = seconds) -> None:
                    time.sleep(seconds)
                    comm.allreduce(array)

                def without_late(seconds: float = seconds) -> None:
                    # Who is behind takes what it missed, and computes for the sum after that.
                    if comm.rank == SLOW and partial.behind:
                        partial.allreduce(array, deadline=0.05 * compute, at_least=comm.size - 1)
                        return
                    time.sleep(seconds)
                    partial.allreduce(array, deadline=0.05 * compute, at_least=comm.size - 1)

                measure(f"{SUM} {factor}", lambda: comm.allreduce(array))
                measure(f"{PLAIN} {factor}", plain)
                for way, sums in coded.items():
                    measure(f"{way} {factor}", functools.partial(sums.sum, part))
                measure(f"{DEADLINE} {factor}", without_late)
            if not number:
                times.clear()  # the first round has pages to touch
        for sums in coded.values():
            sums.close()
        partial.close()
    report.write_text(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tree", help="over a tree of switches, like 4x2; no --workers then")
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--elements", type=int, default=65_536, help="float32 numbers of a sum")
    parser.add_argument("--compute", type=float, default=0.2, help="seconds for a part, c")
    parser.add_argument("--factors", default="1,2,5", help="how much slower the slow rank is")
    parser.add_argument("--steps", type=int, default=5, help="steps in a row of each kind")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    factors = [float(factor) for factor in options.factors.split(",")]
    numbers = (options.elements, options.compute)
    if options.report is not None:
        repeated = (options.steps, options.repetitions)
        rounds(options.report, *numbers, factors, *repeated, options.tree is not None)
        return
    shape = None if options.tree is None else TreeShape.parse(options.tree)
    workers = options.workers if shape is None else shape.ranks
    script = ["-m", "bench.allreduce.late"]
    for name in ("elements", "compute", "factors", "steps", "repetitions"):
        script += [f"--{name}", str(getattr(options, name))]
    try:
        choice = choose(options.switch, "local")
        if shape is None:
            reports = run_ranks(choice, workers, script, TIMEOUT)
        else:
            script += ["--tree", options.tree]
            with (
                run_directory() as directory,
                TreeSystem(choice, directory, directory, shape) as tree,
            ):
                reports = run_ranks_on(tree, directory, workers, script, TIMEOUT)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    fast = [report for rank, report in enumerate(reports) if rank != SLOW]

    def seconds(name: str, factor: float) -> float:
        """Median over the rounds of the time of the slowest normal rank."""
        return float(np.median(np.max([report[f"{name} {factor}"] for report in fast], axis=0)))

    results, c = [], options.compute
    for factor in factors:
        total = seconds(SUM, factor)
        expected = {PLAIN: factor * c + total, DEADLINE: c + total}
        if shape is None:
            expected |= {str(copies): copies * c + total for copies in COPIES}
        else:
            expected[LEAVES] = shape.children[-1] * c + total
        results += [Result(factor, way, seconds(way, factor), expected[way]) for way in expected]
    host = machine()
    print(describe(host))
    print(f"{workers} workers, c = {c:g} s, {options.elements:,} float32 numbers")
    for factor in factors:
        print(f"sum beside factor {factor:g}: {seconds(SUM, factor):.3f} s")
    for one in results:
        print(
            f"factor {one.factor:3g}  {one.way:9} {one.seconds:7.3f} s, expected "
            f"{one.expected:7.3f} s, ratio {one.ratio:.2f}"
        )
    if options.json is not None:
        rows = [asdict(one) for one in results]
        options.json.write_text(json.dumps({"machine": host, "results": rows}))


if __name__ == "__main__":
    main()
