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

from bench.measure import bytes_of, calls_in_turns, median_of
from bench.program import SWITCH, Row, read_options, run, tell
from bench.ranks import run_ranks

ELEMENTS = 1 << 18  # 1 MiB of float32
THRESHOLDS = (16, 64, 256, 1024, 4096, 16384)  # KiB
REPETITIONS = 7

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
    small = (2 ** np.random.default_rng(1).uniform(5, 12, 300)).astype(int)
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
        for name, arrays in models().items():
            megabytes = sum(array.nbytes for array in arrays) / 1e6
            found = calls_in_turns(comm, variants(comm, arrays), REPETITIONS)
            times |= {
                f"{name}, {megabytes:.2f} MB together, {way}": one for way, one in found.items()
            }
    return {"moved": moved, "times": times}


def rows(reports: list[Any]) -> Iterator[Row]:
    """A row for each collective, and one for each way to sum several arrays."""
    for name in reports[0]["times"]:
        moved = [report["moved"].get(name, (None, None)) for report in reports]
        yield {
            "name": name,
            "bytes_up_rank_0": moved[0][0],
            "bytes_up_others": moved[0][0] and max(up for up, _ in moved[1:] or moved),
            "bytes_down": moved[0][1],
            "ms": median_of(reports, "times", name) * 1e3,
        }


def main() -> None:
    options = read_options(__doc__, workers=4, switch=SWITCH)
    reports = run_ranks(rank, options.workers, switch=options.switch)
    tell(options, rows(reports), f"{options.switch} switch, {options.workers} workers")


if __name__ == "__main__":
    run(main)
