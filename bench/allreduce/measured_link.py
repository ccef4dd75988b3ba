# SPDX-License-Identifier: Apache-2.0
"""How well the link that `measure_link` finds tells what an all-reduce takes.

The ranks measure their link, and then reduce tensors of which each has some blocks: the same on all
ranks, or its own. The model's time for just these blocks is once with the price of a frame that
was measured, and once by bytes alone. Shown are the measured times as multiples of the model's,
from the least to the greatest of several systems, each with its own switch, controller and ranks.

    python -m bench.allreduce.measured_link [--workers 4] [--switch embedded|bmv2] [--systems 4]
        [--docs]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.compression import measure_link
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import LabError, UnavailableError

from bench.in_docs import DOCS, put_table
from bench.machine import describe, machine
from bench.ranks import run_ranks

BLOCKS = 1024
LANES = 256
REPETITIONS = 7
TIMEOUT = 300.0  # seconds; for one system
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


def cases(ranks: int) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Which blocks each rank sends, shape (ranks, BLOCKS)."""
    for share in (0.05, 0.25):
        count = int(BLOCKS * share)
        masks = np.zeros((ranks, BLOCKS), dtype=np.bool_)
        masks[:, np.random.default_rng(0).permutation(BLOCKS)[:count]] = True
        yield f"{share:.0%}, the same blocks", masks
        masks = np.zeros((ranks, BLOCKS), dtype=np.bool_)
        for rank in range(ranks):
            masks[rank, np.random.default_rng(rank + 1).permutation(BLOCKS)[:count]] = True
        yield f"{share:.0%}, its own blocks", masks
    yield "all", np.ones((ranks, BLOCKS), dtype=np.bool_)


def compare(comm: p4reduce.Communicator) -> dict[str, tuple[float, float]]:
    """Measured time by the model's, with the price of a frame and by bytes alone."""
    priced = measure_link(comm)
    by_bytes = replace(priced, frame_seconds=0.0)
    times = {}
    for name, masks in cases(comm.size):
        tensor = np.repeat(masks[comm.rank], LANES).astype(np.float32)
        taken = []
        for turn in range(1 + REPETITIONS):  # what happens only once is over after the first
            comm.barrier()
            start = time.perf_counter()
            comm.allreduce(tensor)
            if turn:
                taken.append(time.perf_counter() - start)
        slowest = float(np.median(comm.allgather(np.array([taken])).max(axis=0)))
        traffic = priced.traffic_of(masks)
        times[name] = (
            slowest / float(priced.seconds(traffic)),
            slowest / float(by_bytes.seconds(traffic)),
        )
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--systems", type=int, default=4)
    parser.add_argument("--docs", action="store_true", help="also write docs/experiments.md's")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        with p4reduce.init(timeout=TIMEOUT) as comm:
            options.report.write_text(json.dumps(compare(comm)))
        return
    print(describe(machine()))
    found: list[dict[str, Any]] = []
    try:
        choice = choose(options.switch, "local")
        for _ in range(options.systems):
            found += run_ranks(
                choice, options.workers, ["-m", "bench.allreduce.measured_link"], TIMEOUT
            )[:1]
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    head = ["each rank sends", "with the price of a frame", "by bytes alone"]
    rows = []
    for name in found[0]:
        columns = np.array([one[name] for one in found]).T
        rows.append([name, *(f"{min(column):.1f} to {max(column):.1f}" for column in columns)])
    for line in (head, *rows):
        print("".join(f"{cell:>28}" for cell in line))
    if options.docs:
        put_table("measured-link", head, rows, DOCS / "experiments.md")


if __name__ == "__main__":
    main()
