# SPDX-License-Identifier: Apache-2.0
"""The tensors that all contenders reduce, and checks of their sums."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce_lab.compare.cells import CompareCase

LANES = 256  # float32 in a block of 1,024 bytes
_FLOAT32, _FLOAT16 = 2.0**-20, 2.0**-10  # of the largest number, for each rank; with room to spare

Floats = npt.NDArray[np.float32]


@lru_cache(maxsize=1)
def _pattern(size: int) -> Floats:
    """Normal numbers, the same in every process; shape (blocks, LANES)."""
    numbers = np.random.default_rng(size).standard_normal(size // 4, np.float32)
    return numbers.reshape(-1, LANES)


def _factors(case: CompareCase, ranks: int, blocks: int, turn: int) -> Floats:
    """What the pattern's blocks are multiplied by, shape (ranks, blocks): 0 where there is none."""
    factors = np.zeros((ranks, blocks), np.float32)
    rng = np.random.default_rng([blocks, round(case.density * 1e6), turn])
    number = max(1, round(case.density * blocks))
    chosen: Any = slice(None) if case.density >= 1 else rng.choice(blocks, number, replace=False)
    for rank in range(ranks):
        if rank and case.density < 1 and case.overlap == "independent":
            chosen = rng.choice(blocks, number, replace=False)
        factors[rank, chosen] = (rank + 1) / ranks
    return factors


def tensor(case: CompareCase, rank: int, ranks: int, size: int, turn: int) -> Floats:
    """Return a rank's tensor in a turn: `size` bytes of float32."""
    pattern = _pattern(size)
    factors = _factors(case, ranks, len(pattern), turn)[rank]
    return np.ascontiguousarray(pattern * factors[:, None]).reshape(-1)


def is_sum(result: Floats, case: CompareCase, ranks: int, size: int, turn: int) -> bool:
    """Return whether a result is the sum of all tensors, within the precision on the wire."""
    pattern = _pattern(size)
    factors = _factors(case, ranks, len(pattern), turn)
    expected = pattern * factors.sum(axis=0)[:, None]
    off = np.abs(result.reshape(-1, LANES) - expected)
    if case.wire in ("int16", "int8", "int4"):
        return bool((off.reshape(-1) <= _lane_bounds(pattern, factors, case.wire)).all())
    each = _FLOAT16 if case.wire == "float16" else _FLOAT32
    return bool(off.max() <= ranks * each * np.abs(pattern).max())


def _lane_bounds(pattern: Floats, factors: Floats, precision: str) -> Floats:
    """Return how far a sum in narrow lanes may be off, for each element."""
    from p4reduce import error_bound
    from p4reduce.tensors.precision import PRECISIONS

    width = PRECISIONS[precision].lanes
    largest = (np.abs(pattern).max(axis=1) * factors.max(axis=0)).astype(np.float64)
    blocks = -(-len(largest) * LANES // width)
    padded = np.zeros(blocks * (width // LANES))
    padded[: len(largest)] = largest
    bounds = error_bound(padded.reshape(blocks, -1).max(axis=1), len(factors), precision)
    room = 2.0**-20 * float(padded.max())  # the sum's own rounding to float32
    return np.repeat(bounds + room, width)[: pattern.size].astype(np.float32)
