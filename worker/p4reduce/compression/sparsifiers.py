# SPDX-License-Identifier: Apache-2.0
"""Compressors with a fixed level: all, the largest, random ones, all above a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4reduce.compression.base import (
    Array,
    Compressed,
    Compressor,
    Selected,
    TensorState,
    keep_units,
)
from p4reduce.compression.costs import FloatArray, IntArray
from p4reduce.compression.levels import unit_energy


@dataclass
class Uncompressed(Compressor):
    """Sends everything: exact with 32-bit lanes, rounded stochastically with narrow ones."""

    biased: ClassVar[bool] = False

    def _select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        return Selected(wanted.copy(), -(-wanted.size // self.unit), 1.0)


def _selected(wanted: Array, energy: FloatArray, units: IntArray, unit: int) -> Selected:
    total = float(energy.sum())
    alpha = min(1.0, float(energy[units].sum()) / total) if total > 0 else 0.0
    return Selected(keep_units(wanted, units, unit), len(units), alpha)


@dataclass
class _Fraction(Compressor):
    """A share of the units.

    Attributes:
        density: share of the units to send, above 0 and up to 1; at least one unit is sent.
    """

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.density <= 1:
            raise ValueError(f"density {self.density} is not within 0 (excluded) to 1")

    def _level(self, units: int) -> int:
        return max(1, min(units, round(self.density * units)))


@dataclass
class TopK(_Fraction):
    """The units of most energy, a fixed share of them (Aji and Heafield, EMNLP 2017)."""

    def _select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = unit_energy(wanted, self.unit)
        level = self._level(len(energy))
        return _selected(wanted, energy, np.argpartition(-energy, level - 1)[:level], self.unit)


@dataclass
class ApproximateTopK(_Fraction):
    """As TopK, found by counting instead of sorting (MSTopK, Shi et al., MLSys 2021).

    Attributes:
        passes: of the search for a threshold.
    """

    passes: int = 30

    def _select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = unit_energy(wanted, self.unit)
        level = self._level(len(energy))
        units = approximate_top_k(np.sqrt(energy), level, self.passes, self.random)
        return _selected(wanted, energy, units, self.unit)


@dataclass
class RandomK(_Fraction):
    """Random units, a fixed share of them, the same on all ranks if they share the seed.

    With feedback they are sent as they are; without it they are scaled by 1/density, so that the
    mean is right (Stich et al., NeurIPS 2018).
    """

    def _select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        count = -(-wanted.size // self.unit)
        units = self._draw(count)
        values = keep_units(wanted, units, self.unit)
        if not self.feedback:
            values *= values.dtype.type(count / len(units))
        return Selected(values, len(units))

    def _send_whole(self, state: TensorState, gradient: Array) -> Compressed:
        self._draw(-(-gradient.size // self.unit))  # or the ranks' next draws would differ
        return super()._send_whole(state, gradient)

    def _draw(self, count: int) -> IntArray:
        level = self._level(count)
        return self.random.choice(count, level, replace=False, shuffle=False)


@dataclass
class Threshold(Compressor):
    """All units whose root mean square is at least `threshold` (Strom, Interspeech 2015)."""

    threshold: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold >= 0:
            raise ValueError(f"threshold {self.threshold} is negative")

    def _select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = unit_energy(wanted, self.unit)
        elements = np.full(len(energy), self.unit)
        elements[-1] = wanted.size - (len(energy) - 1) * self.unit  # the last one may be shorter
        large = energy >= self.threshold**2 * elements
        return _selected(wanted, energy, np.flatnonzero(large & (energy > 0)), self.unit)


def approximate_top_k(
    magnitudes: FloatArray, count: int, passes: int, random: np.random.Generator
) -> IntArray:
    """Indices of `count` values that are the largest but for a narrow band of thresholds.

    MSTopK (Shi et al., MLSys 2021, algorithm 1): halve the interval from mean to maximum `passes`
    times, counting what is above; take all above the upper end, and fill up with a random run of
    what lies between the two ends. No sort, only passes over memory.

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
