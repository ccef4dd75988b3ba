# SPDX-License-Identifier: Apache-2.0
"""What the collectives cost on the wire, and what fusing small arrays gains.

Real worker processes through a real switch process, all on this machine's cores. Bytes are counted
by the workers, retransmissions left out; times are the median of the slowest rank's.

    python -m bench.allreduce.collectives [--workers 4] [--switch embedded|bmv2] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce_lab.choice import choose

from bench.allreduce.wire import bytes_of
from bench.measure import calls_in_turns, median_of
from bench.program import SWITCH, Row, read_options, run, tell
from bench.ranks import run_ranks

ELEMENTS = 1 << 18  # 1 MiB of float32
THRESHOLDS = (16, 64, 256, 1024, 4096, 16384)  # KiB
REPETITIONS = 7
TIMEOUT = 900.0  # seconds; for all of it

Array = npt.NDArray[Any]
Calls = dict[str, Callable[[], object]]


def collectives(comm: p4reduce.Communicator) -> Calls:
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


def models() -> dict[str, list[Array]]:
    """Lists of arrays as of models' gradients."""
    rng = np.random.default_rng(1)
    small = (2 ** rng.uniform(5, 12, 300)).astype(int)
    return {
        "300 arrays of 32 to 4,096": [np.ones(size, np.float32) for size in small],
        "16 arrays of 65,536": [np.ones(65_536, np.float32) for _ in range(16)],
    }


def variants(comm: p4reduce.Communicator, arrays: list[Array]) -> Calls:
    """Ways to all-reduce a list of arrays in place; means of ones, so that they stay ones."""

    def one_by_one() -> None:
        for array in arrays:
            comm.allreduce(array, p4reduce.MEAN, out=array)

    def all_in_flight() -> None:
        for handle in [comm.allreduce_async(one, p4reduce.MEAN, out=one) for one in arrays]:
            handle.wait()

    fused = partial(comm.grouped_allreduce, arrays, p4reduce.MEAN, outs=arrays)
    ways: Calls = {"one by one": one_by_one, "all in flight": all_in_flight}
    for kib in THRESHOLDS:
        ways[f"fused, {kib} KiB"] = partial(fused, fusion_threshold=kib << 10)
    return ways


def rank() -> dict[str, Any]:
    """What each rank does: returns bytes and seconds by collective, and seconds by fusion."""
    with p4reduce.init() as comm:
        calls = collectives(comm)
        moved = {}
        for name, call in calls.items():
            call()
            comm.barrier()
            moved[name] = bytes_of(comm, call)
        times = calls_in_turns(comm, calls, REPETITIONS)
        fusion = {}
        for name, arrays in models().items():
            megabytes = sum(array.nbytes for array in arrays) / 1e6
            fusion[f"{name}, {megabytes:.2f} MB together"] = calls_in_turns(
                comm, variants(comm, arrays), REPETITIONS
            )
    return {"moved": moved, "times": times, "fusion": fusion}


def rows(reports: list[Any]) -> Iterator[Row]:
    """A row for each collective, and one for each way to sum several arrays."""
    for name, (up, down) in reports[0]["moved"].items():
        yield {
            "name": name,
            "bytes_up_rank_0": up,
            "bytes_up_others": max(one["moved"][name][0] for one in reports[1:] or reports),
            "bytes_down": down,
            "ms": median_of(reports, "times", name) * 1e3,
        }
    for name, ways in reports[0]["fusion"].items():
        for way in ways:
            yield {
                "name": f"{name}, {way}",
                "bytes_up_rank_0": None,
                "bytes_up_others": None,
                "bytes_down": None,
                "ms": median_of(reports, "fusion", name, way) * 1e3,
            }


def main() -> None:
    options = read_options(__doc__, workers=4, switch=SWITCH)
    reports = run_ranks(choose(options.switch, "local"), options.workers, rank, TIMEOUT)
    tell(options, rows(reports), f"{options.switch} switch, {options.workers} workers")


if __name__ == "__main__":
    run(main)
