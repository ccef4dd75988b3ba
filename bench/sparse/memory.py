# SPDX-License-Identifier: Apache-2.0
"""Memory and time that a worker's sparse path takes besides the wire: 1 % of a 100 MB tensor.

No switch is needed: the blocks that would be sent come back as they are.

    python -m bench.sparse.memory [--megabytes 100] [--density 0.01]
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from typing import Any

import numpy as np
from p4reduce import SparseBlocks, SparseRows
from p4reduce.tensors.sparse import to_runs
from p4reduce.tensors.sparse_blocks import SparseSums
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call
from p4reduce.wire.format import Format

from bench.machine import describe, machine

SLOTS = 128
LANES = Format.INT32.lanes


def inputs(elements: int, density: float) -> dict[str, Any]:
    """The same number of elements in several forms."""
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {}
    for width in (768, 256, 64, 4):
        rows = elements // width
        numbers = rng.choice(rows, int(rows * density), replace=False)
        values = np.ones((len(numbers), width), np.float32)
        given[f"rows of {width}"] = SparseRows(numbers, values, (rows, width))
        if width == LANES:
            given["blocks of 256"] = SparseBlocks(np.sort(numbers), values, rows * width)
    try:
        import scipy.sparse
    except ImportError:
        return given
    columns = 2500
    matrix = scipy.sparse.random_array(
        (elements // columns, columns), density=density, format="csr", dtype=np.float32, rng=rng
    )
    given["scipy's csr, elements anywhere"] = matrix
    return given


def run(array: Any) -> tuple[int, float]:
    """All that a call does but for its frames. Returns the blocks, and microseconds for each."""
    start = time.perf_counter()
    runs, _, give_back = to_runs(array)
    sums = SparseSums(runs.values.dtype, runs.size, LANES)
    call = Call("allreduce", "float32", runs.size)
    one = Collective(call, runs.source(LANES), sums, sequence=0, slots=SLOTS, timeout=60.0)
    blocks = np.unique(one.next_nonzero)[:-1]
    rows = np.empty((SLOTS, LANES), np.float32)
    for at in range(0, len(blocks), SLOTS):
        some = blocks[at : at + SLOTS]
        one.source.gather(some, rows[: len(some)])
        sums.scatter(some, rows[: len(some)], slice(None))
    give_back(*sums.rows(runs.width))
    return len(blocks), (time.perf_counter() - start) / len(blocks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--megabytes", type=float, default=100.0, help="of the dense tensor")
    parser.add_argument("--density", type=float, default=0.01)
    arguments = parser.parse_args()
    elements = int(arguments.megabytes * 1e6 / 4)
    print(
        f"{describe(machine())}; float32, {arguments.density:.2%} of {arguments.megabytes:g} MB\n"
    )
    print(f"{'':34}{'blocks':>9}{'peak MB':>9}{'us a block':>12}")
    for name, array in inputs(elements, arguments.density).items():
        tracemalloc.start()
        run(array)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        blocks, microseconds = min(run(array) for _ in range(3))
        print(f"{name:34}{blocks:9,}{peak / 1e6:9.1f}{microseconds:12.1f}")


if __name__ == "__main__":
    main()
