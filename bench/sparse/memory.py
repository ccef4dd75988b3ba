# SPDX-License-Identifier: Apache-2.0
"""Memory and time that a worker's sparse path takes besides the wire: 1 % of a 100 MB tensor.

No switch is needed: the blocks that would be sent come back as they are.

    python -m bench.sparse.memory [--megabytes 100] [--density 0.01]
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from p4reduce import SparseBlocks, SparseRows
from p4reduce.tensors.sparse import to_runs
from p4reduce.tensors.sparse_blocks import SparseSums
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call
from p4reduce.wire.format import Format

from bench.program import Option, Row, read_options, run, tell

SLOTS = 128
LANES = Format.INT32.lanes
COLUMNS = 2500


def inputs(elements: int, density: float) -> Iterator[tuple[str, Any]]:
    """The same number of elements in several forms."""
    rng = np.random.default_rng(1)
    for width in (768, LANES, 64, 4):
        rows = elements // width
        numbers = rng.choice(rows, int(rows * density), replace=False)
        values = np.ones((len(numbers), width), np.float32)
        yield f"rows of {width}", SparseRows(numbers, values, (rows, width))
        if width == LANES:
            yield f"blocks of {LANES}", SparseBlocks(np.sort(numbers), values, rows * width)
    shape = (elements // COLUMNS, COLUMNS)
    form: dict[str, Any] = {"density": density, "format": "csr", "dtype": np.float32, "rng": rng}
    yield "scipy's csr, elements anywhere", scipy.sparse.random_array(shape, **form)


def call_alone(array: Any) -> tuple[int, float]:
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


def rows(elements: int, density: float) -> Iterator[Row]:
    """Measure each form: memory once, and the least time of three calls."""
    for name, array in inputs(elements, density):
        tracemalloc.start()
        call_alone(array)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        blocks, microseconds = min(call_alone(array) for _ in range(3))
        yield {"name": name, "blocks": blocks, "peak_mb": peak / 1e6, "us_a_block": microseconds}


def main() -> None:
    options = read_options(__doc__, megabytes=Option(100.0, "of the dense tensor"), density=0.01)
    elements = int(options.megabytes * 1e6 / 4)
    what = f"float32, {options.density:.2%} of {options.megabytes:g} MB"
    tell(options, rows(elements, options.density), what)


if __name__ == "__main__":
    run(main)
