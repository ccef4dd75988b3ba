# SPDX-License-Identifier: Apache-2.0
"""What the collectives cost on the wire, and what fusing small arrays gains.

Real worker processes through a real switch process, all on this machine's cores. Bytes are counted
by the workers, retransmissions left out; times are the median of the slowest rank's.

    python -m bench.allreduce.collectives [--workers 4] [--switch embedded|bmv2] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System, rank_variables

from bench.machine import describe, machine
from bench.ranks import wait_for

ELEMENTS = 1 << 18  # 1 MiB of float32
THRESHOLDS = (16, 64, 256, 1024, 4096, 16384)  # KiB
REPETITIONS = 7
TIMEOUT = 900.0  # seconds; for all of it
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"

Array = npt.NDArray[Any]
Figures = dict[str, dict[str, float]]


def collectives(comm: p4reduce.Communicator) -> dict[str, Callable[[], object]]:
    """What is compared: each about 1 MiB of float32."""
    dense = np.ones(ELEMENTS, np.float32)
    share = dense[: ELEMENTS // comm.size]
    rows = np.arange(100 * comm.rank, 4096, 100 * comm.size)  # each in a block of its own
    sparse = p4reduce.SparseRows(rows, np.ones((len(rows), 64), np.float32), (4096, 64))
    shares = [len(share)] * comm.size
    return {
        "allreduce": lambda: comm.allreduce(dense),
        "reduce": lambda: comm.reduce(dense),
        "reduce_scatter": lambda: comm.reduce_scatter(dense),
        "broadcast": lambda: comm.broadcast(dense),
        "allgather, 1 MiB together": lambda: comm.allgather(share),
        "the same, counts given": lambda: comm.allgather(share, counts=shares),
        "allreduce_sparse, 4 % of the blocks": lambda: comm.allreduce_sparse(sparse),
        "barrier": comm.barrier,
    }


def measure_wire(comm: p4reduce.Communicator) -> Figures:
    """Bytes of one call of each, without retransmissions."""
    figures: Figures = {}
    calls = collectives(comm)
    for name, call in calls.items():
        call()
        comm.barrier()
        before = comm.stats
        call()
        after = comm.stats
        repeated = after.retransmissions - before.retransmissions
        filled = after.blocks_sent - before.blocks_sent
        empty = after.frames_sent - before.frames_sent - repeated - filled
        figures[name] = {
            "up": filled * PAYLOAD_FRAME_BYTES + empty * EMPTY_FRAME_BYTES,
            "down": after.bytes_received - before.bytes_received,
            "retransmissions": repeated,
        }
    for name, ms in median_ms(comm, calls).items():
        figures[name]["ms"] = ms
    return figures


def models() -> dict[str, list[Array]]:
    """Lists of arrays as of models' gradients."""
    rng = np.random.default_rng(1)
    small = (2 ** rng.uniform(5, 12, 300)).astype(int)
    return {
        "300 arrays of 32 to 4,096": [np.ones(size, np.float32) for size in small],
        "16 arrays of 65,536": [np.ones(65_536, np.float32) for _ in range(16)],
    }


def variants(comm: p4reduce.Communicator, arrays: list[Array]) -> dict[str, Callable[[], object]]:
    """Ways to all-reduce a list of arrays in place; means of ones, so that they stay ones."""

    def one_by_one() -> None:
        for array in arrays:
            comm.allreduce(array, p4reduce.MEAN, out=array)

    def all_in_flight() -> None:
        handles = [comm.allreduce_async(one, p4reduce.MEAN, out=one) for one in arrays]
        for handle in handles:
            handle.wait()

    def fused(threshold: int) -> None:
        comm.grouped_allreduce(arrays, p4reduce.MEAN, outs=arrays, fusion_threshold=threshold)

    ways: dict[str, Callable[[], object]] = {
        "one by one": one_by_one,
        "all in flight": all_in_flight,
    }
    for kib in THRESHOLDS:
        ways[f"fused, {kib} KiB"] = functools.partial(fused, kib << 10)
    return ways


def measure_fusion(comm: p4reduce.Communicator) -> Figures:
    """Milliseconds of all-reducing lists of arrays."""
    figures: Figures = {}
    for name, arrays in models().items():
        megabytes = sum(array.nbytes for array in arrays) / 1e6
        times = median_ms(comm, variants(comm, arrays))
        figures[f"{name}, {megabytes:.2f} MB together"] = times
    return figures


def median_ms(
    comm: p4reduce.Communicator, calls: dict[str, Callable[[], object]]
) -> dict[str, float]:
    """Medians over repetitions of the slowest rank's times, in milliseconds.

    The calls take turns, so that what else the machine does meets all of them.
    """
    samples = np.empty((1, REPETITIONS, len(calls)))
    for n in range(REPETITIONS):
        for which, call in enumerate(calls.values()):
            comm.barrier()
            start = time.perf_counter()
            call()
            samples[0, n, which] = time.perf_counter() - start
    medians = np.median(comm.allgather(samples).max(axis=0), axis=0) * 1e3
    return dict(zip(calls, medians.tolist(), strict=True))


def rank_main(directory: Path) -> None:
    """What each rank does."""
    with p4reduce.init() as comm:
        report = {"wire": measure_wire(comm), "fusion": measure_fusion(comm)}
        (directory / f"rank{comm.rank}.json").write_text(json.dumps(report))


def measure(switch: str, workers: int) -> list[dict[str, Figures]]:
    """Runs all of it over a switch of its own; returns the report of each rank."""
    with (
        run_directory() as directory,
        System(choose(switch, "local"), directory, directory, workers) as system,
    ):
        system.start()
        system.wait_ready()
        children = [
            system.processes.start(
                f"rank {rank}",
                [sys.executable, "-m", "bench.allreduce.collectives", "--rank-of", str(directory)],
                environment={**rank_variables(rank, workers), **system.variables()},
            )
            for rank in range(workers)
        ]
        wait_for(system.processes, children, TIMEOUT)
        return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(workers)]


def show(reports: list[dict[str, Figures]]) -> None:
    """Prints both tables."""
    print(f"{'bytes':36}{'up, rank 0':>12}{'up, others':>12}{'down':>12}{'ms':>9}")
    for name, of_root in reports[0]["wire"].items():
        others = max(report["wire"][name]["up"] for report in reports[1:] or reports)
        print(
            f"{name:36}{of_root['up']:12,.0f}{others:12,.0f}{of_root['down']:12,.0f}"
            f"{of_root['ms']:9.1f}"
        )
    for name, times in reports[0]["fusion"].items():
        print(f"\n{name}")
        for how, ms in times.items():
            print(f"    {how:32}{ms:9.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of is not None:
        rank_main(arguments.rank_of)
        return
    try:
        reports = measure(arguments.switch, arguments.workers)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        raise SystemExit(CANNOT_RUN) from None
    figures = machine()
    print(f"{describe(figures)}; {arguments.switch} switch, {arguments.workers} workers\n")
    show(reports)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": figures, "ranks": reports}, indent=1))


if __name__ == "__main__":
    main()
