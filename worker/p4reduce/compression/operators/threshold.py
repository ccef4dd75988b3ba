# SPDX-License-Identifier: Apache-2.0
"""All units above a threshold: "threshold:0.001"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.registry import Settings, register
from p4reduce.compression.shares import selected


@dataclass
class Threshold(Compressor):
    """All units whose root mean square is at least `threshold` (Strom, Interspeech 2015)."""

    threshold: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold >= 0:
            raise ValueError(f"threshold {self.threshold} is negative")

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = state.energies
        elements = np.full(len(energy), self.unit)
        elements[-1] = wanted.size - (len(energy) - 1) * self.unit  # the last one may be shorter
        large = energy >= self.threshold**2 * elements
        return selected(energy, np.flatnonzero(large & (energy > 0)))


@register("threshold", "threshold:RMS")
def _by_name(given: Settings) -> Compressor:
    return Threshold(**given.common, threshold=given.number(), switch_over=given.switch_over)
