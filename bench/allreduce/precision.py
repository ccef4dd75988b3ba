# SPDX-License-Identifier: Apache-2.0
"""What narrow lanes cost and save: bytes, time and error of a float32 all-reduce.

The ranks reduce a tensor in lanes of each width in turns. Its elements are normal, each
stretch of 4,096 with a scale of its own, evenly from 2^-10 to 1 in the exponent. Errors are those
of the sum against a float64 sum: the worst one as a share of the bound that `p4reduce.error_bound`
states for its block, and their root mean square by that of the sum. Then the average of 64 calls
with other seeds: if rounding is unbiased, its error is an eighth of one call's.

Bytes are those of whole Ethernet frames that a rank sends, without the few that timers repeat.

    python -m bench.allreduce.precision [--workers 4] [--switch embedded|bmv2] [--json FILE]
        [--docs]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import LabError, UnavailableError

from bench.in_docs import DOCS, put_table
from bench.machine import describe, machine
from bench.ranks import run_ranks

LANES = {"int32": 256, "int16": 512, "int8": 1024, "int4": 2048}  # per block
ELEMENTS = 1 << 19
STRETCH = 4096
SEEDS = 64
TURNS = 7
TIMEOUT = 300.0  # seconds; for all of it
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"

Floats = npt.NDArray[np.float32]


def tensor(rank: int) -> Floats:
    """What a rank contributes."""
    rng = np.random.default_rng(rank)
    # The scales are all ranks'.
    scales = np.exp2(np.random.default_rng(1000).uniform(-10, 0, ELEMENTS // STRETCH))
    values: Floats = (rng.standard_normal(ELEMENTS) * np.repeat(scales, STRETCH)).astype(np.float32)
    return values


def rms(values: npt.NDArray[np.float64]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def errors(comm: p4reduce.Communicator, mine: Floats, precision: str) -> dict[str, float]:
    """How far sums are off."""
    tensors = np.array([tensor(rank) for rank in range(comm.size)], np.float64)
    exact = tensors.sum(axis=0)
    width = LANES[precision]
    largest = np.abs(tensors).max(axis=0).reshape(-1, width).max(axis=1)
    bounds = np.repeat(p4reduce.error_bound(largest, comm.size, precision), width)
    bounds += np.spacing(np.abs(exact).astype(np.float32)) / 2  # the result is float32
    total = np.zeros(ELEMENTS)
    for seed in range(SEEDS):
        total += comm.allreduce(mine, precision=precision, seed=seed)
        if seed == 0:
            one = total - exact
    return {
        "of_bound": float((np.abs(one) / bounds).max()),
        "relative_rms": rms(one) / rms(exact),
        "averaged": rms(total / SEEDS - exact) / rms(one),
    }


def measure(comm: p4reduce.Communicator) -> dict[str, dict[str, float]]:
    """The figures of each precision, of this rank."""
    mine = tensor(comm.rank)
    out = np.empty_like(mine)
    figures: dict[str, dict[str, float]] = {}
    for precision in LANES:
        before = comm.stats
        comm.allreduce(mine, precision=precision, out=out)
        after = comm.stats
        repeated = after.retransmissions - before.retransmissions
        filled = after.blocks_sent - before.blocks_sent
        empty = after.frames_sent - before.frames_sent - repeated - filled
        figures[precision] = {"up": filled * PAYLOAD_FRAME_BYTES + empty * EMPTY_FRAME_BYTES}
    seconds = np.empty((1, TURNS, len(LANES)))
    for turn in range(TURNS):
        for which, precision in enumerate(LANES):
            comm.barrier()
            start = time.perf_counter()
            comm.allreduce(mine, precision=precision, out=out)
            seconds[0, turn, which] = time.perf_counter() - start
    medians = np.median(comm.allgather(seconds).max(axis=0), axis=0) * 1e3
    for precision, ms in zip(LANES, medians.tolist(), strict=True):
        figures[precision] |= {"ms": ms, **errors(comm, mine, precision)}
    return figures


def show(figures: dict[str, dict[str, float]]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table."""
    head = ["lanes", "per frame", "MB per rank", "time", "worst error", "error", "mean of 64 calls"]
    rows = [
        [
            precision,
            str(LANES[precision]),
            f"{one['up'] / 1e6:.2f}",
            f"{one['ms']:.0f} ms",
            f"{one['of_bound']:.0%} of the bound",
            f"{one['relative_rms']:.1e}",
            f"{one['averaged']:.3f} of that",
        ]
        for precision, one in figures.items()
    ]
    return head, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--docs", action="store_true", help="also write docs/lanes.md's table")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        with p4reduce.init(slots=128, timeout=TIMEOUT) as comm:
            options.report.write_text(json.dumps(measure(comm)))
        return
    host = machine()
    print(describe(host))
    try:
        choice = choose(options.switch, "local")
        reports: list[Any] = run_ranks(
            choice, options.workers, ["-m", "bench.allreduce.precision"], TIMEOUT
        )
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    head, rows = show(reports[0])
    for line in (head, *rows):
        print("".join(f"{cell:>18}" for cell in line))
    if options.json is not None:
        results = [{"name": name, **one} for name, one in reports[0].items()]
        report = {"machine": host, "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.docs:
        put_table("precision", head, rows, DOCS / "lanes.md")


if __name__ == "__main__":
    main()
