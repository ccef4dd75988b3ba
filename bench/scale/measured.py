# SPDX-License-Identifier: Apache-2.0
"""The model of time beside real processes on shaped links.

Ranks are hosts of a Mininet network whose links are limited (htb at both ends) to a rate that this
machine's cores keep up with. They reduce some tensors in turns; shown are the median and the range
of the slowest rank's time, and what `p4reduce_lab.planning` says.

What software takes for each call is measured in the same run: all processes share this machine's
cores, so that it grows with their number, and with what else the machine does. It is the time of an
all-reduce of a single block, less what the model says for that without it. No other figure of the
model is fitted to anything here.

    python -m bench.scale.measured [--workers 2 4 8] [--bandwidth 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.tensors.precision import PRECISIONS
from p4reduce_lab.choice import LabChoice, choose
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster, PlannedTensor, by_switches

from bench.machine import describe, machine
from bench.ranks import run_ranks

SLOTS = 32
SEED = 5
TIMEOUT = 300.0  # seconds; for a number of workers
REPETITIONS = 5
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"

ONE_BLOCK = PlannedTensor(256)  # tells what a call takes
CASES = (
    PlannedTensor(131_072),
    PlannedTensor(262_144, "int16"),
    PlannedTensor(524_288, "int8"),
    PlannedTensor(262_144, "int32", 0.1, "aligned"),
    PlannedTensor(131_072, "int32", 0.1, "independent"),
    PlannedTensor(16_384),
)


@dataclass(frozen=True)
class Measured:
    """One case.

    Attributes:
        workers: ranks.
        switches: side by side; each rank has a link to each.
        megabits: of each link, per second.
        elements, precision, density, overlap: of the tensor.
        model: seconds.
        call: seconds of software in that, from the same run.
        median, fastest, slowest: seconds, of the slowest rank in each repetition.
    """

    workers: int
    switches: int
    megabits: float
    elements: int
    precision: str
    density: float
    overlap: str
    model: float
    call: float
    median: float
    fastest: float
    slowest: float

    @property
    def off(self) -> float:
        """The model's time by the measured one, less 1."""
        return self.model / self.median - 1


def gradient(tensor: PlannedTensor, rank: int, repetition: int) -> npt.NDArray[np.float32]:
    """What a rank reduces."""
    lanes = PRECISIONS[tensor.precision].lanes
    blocks = tensor.elements // lanes
    shared = np.random.default_rng([SEED, repetition])
    own = np.random.default_rng([SEED, repetition, 1 + rank])
    values = own.standard_normal((blocks, lanes)).astype(np.float32)
    draw = shared if tensor.overlap == "aligned" else own
    chosen = draw.permutation(blocks)[: round(blocks * tensor.density)]
    values[np.setdiff1d(np.arange(blocks), chosen)] = 0
    return values.reshape(-1)


def reduce_all(report: Path) -> None:
    """What each rank does: leaves its times, by case and repetition."""
    cases = (ONE_BLOCK, *CASES)
    times: list[list[float]] = [[] for _ in cases]
    with p4reduce.init(slots=SLOTS, timeout=TIMEOUT) as comm:
        comm.allreduce(gradient(CASES[0], comm.rank, 0))  # timers learn how long round trips are
        for repetition in range(REPETITIONS):
            for number, tensor in enumerate(cases):
                mine = gradient(tensor, comm.rank, repetition)
                precision = None if tensor.precision == "int32" else tensor.precision
                comm.barrier()
                start = time.perf_counter()
                comm.allreduce(mine, precision=precision)
                times[number].append(time.perf_counter() - start)
    report.write_text(json.dumps(times))


def measure(choice: LabChoice, workers: int, switches: int, megabits: float) -> list[Measured]:
    """All cases of a number of workers and of switches side by side, in a network of their own."""
    reports = run_ranks(choice, workers, ["-m", "bench.scale.measured"], TIMEOUT, switches)
    cluster = Cluster(
        workers, PlannedLink(megabits * 1e6, overhead=0), switch=SWITCHES["embedded"], slots=SLOTS
    )
    slowest = np.max(reports, axis=0)  # by case and repetition
    alone = by_switches(replace(cluster, call=0.0), ONE_BLOCK, cluster.star(switches)).seconds
    cluster = replace(cluster, call=max(0.0, float(np.median(slowest[0])) - alone))
    found = []
    for tensor, seconds in zip(CASES, slowest[1:], strict=True):
        model = by_switches(cluster, tensor, cluster.star(switches)).seconds
        range_ = float(seconds.min()), float(seconds.max())
        found.append(
            Measured(
                workers,
                switches,
                megabits,
                **asdict(tensor),
                model=model,
                call=cluster.call,
                median=float(np.median(seconds)),
                fastest=range_[0],
                slowest=range_[1],
            )
        )
    return found


def what(one: Measured) -> str:
    """The case, for people."""
    size = f"{one.elements:,} floats"
    if one.precision != "int32":
        size += f" in {one.precision}"
    return size if one.density == 1 else f"{size}, {one.density:.0%} of the blocks, {one.overlap}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument(
        "--side-by-side", type=int, nargs="*", default=[4], help="workers with two switches as well"
    )
    parser.add_argument("--bandwidth", type=float, default=5.0, help="of each link, in Mbit/s")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        reduce_all(options.report)
        return
    try:
        choice = choose("embedded", "mininet", bandwidth=options.bandwidth)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    host = machine()
    print(describe(host))
    found: list[Measured] = []
    pairs = [(workers, 1) for workers in options.workers]
    pairs += [(workers, 2) for workers in options.side_by_side]
    for workers, switches in pairs:
        # With two links each, ranks would have this machine's cores do twice as much.
        own = options.bandwidth / switches
        for one in measure(replace(choice, bandwidth=own), workers, switches, own):
            found.append(one)
            print(
                f"{workers} ranks, {switches} switches, {what(one):54} {1e3 * one.median:9.1f} ms "
                f"({1e3 * one.fastest:.1f} to {1e3 * one.slowest:.1f}), "
                f"model {1e3 * one.model:9.1f} ms, {one.off:+.1%}, call {1e3 * one.call:.1f} ms",
                flush=True,
            )
    if options.json is not None:
        results: list[dict[str, Any]] = [{**asdict(one), "off": one.off} for one in found]
        options.json.write_text(json.dumps({"machine": host, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
