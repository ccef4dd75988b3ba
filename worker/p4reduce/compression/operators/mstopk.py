# SPDX-License-Identifier: Apache-2.0
"""Approximate top-k, found without sorting: "mstopk:0.01"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.costs import FloatArray, IntArray
from p4reduce.compression.registry import Settings, register
from p4reduce.compression.shares import Fraction, selected


@dataclass
class ApproximateTopK(Fraction):
    """Like TopK, found by counting instead of sorting (MSTopK, Shi et al., MLSys 2021).

    Attributes:
        passes: the number of passes in the search for a threshold.
    """

    passes: int = 30

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = state.energies
        level = self.level_of(len(energy))
        units = approximate_top_k(np.sqrt(energy), level, self.passes, self.random)
        return selected(energy, units)


@register("mstopk", "mstopk:SHARE")
def _by_name(given: Settings) -> Compressor:
    return ApproximateTopK(**given.common, density=given.number(), switch_over=given.switch_over)


def approximate_top_k(
    magnitudes: FloatArray, count: int, passes: int, random: np.random.Generator
) -> IntArray:
    """Indices of `count` values that are the largest but for a narrow band of thresholds.

    MSTopK (Shi et al., MLSys 2021, algorithm 1). It halves the interval from mean to maximum
    `passes` times, and counts the numbers above. It takes all numbers above the upper end, and
    fills up with a random run of those between the two ends. It needs no sort, only passes over
    memory.

    Raises:
        ValueError: count is not within 1 to the number of magnitudes.
    """
    if not 1 <= count <= len(magnitudes):
        raise ValueError(f"count {count} is not within 1 to {len(magnitudes)}")
    low, high = float(magnitudes.mean()), float(magnitudes.max())
    if np.count_nonzero(magnitudes >= low) < count:
        low = 0.0  # more wanted than the mean cuts off, which the paper does not consider
    upper: float | None = None
    for _ in range(passes):
        middle = low + (high - low) / 2
        above = int(np.count_nonzero(magnitudes >= middle))
        if above > count:
            low = middle
        else:
            high = upper = middle
            if above == count:
                break
    above_upper: npt.NDArray[np.bool_] = (
        magnitudes >= upper if upper is not None else np.zeros(len(magnitudes), dtype=np.bool_)
    )
    certain = np.flatnonzero(above_upper)
    missing = count - len(certain)
    if not missing:
        return certain
    band = np.flatnonzero((magnitudes >= low) & ~above_upper)
    start = int(random.integers(len(band) - missing + 1))
    return np.concatenate([certain, band[start : start + missing]])
