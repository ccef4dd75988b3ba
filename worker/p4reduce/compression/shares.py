# SPDX-License-Identifier: Apache-2.0
"""What compressors of a fixed level share: the share of units, and its energy."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.compression.base import Compressor, Selected
from p4reduce.compression.costs import FloatArray, IntArray


def selected(energy: FloatArray, units: IntArray) -> Selected:
    """Return the chosen units, with their share of the energy as alpha."""
    total = float(energy.sum())
    alpha = min(1.0, float(energy[units].sum()) / total) if total > 0 else 0.0
    return Selected(units, alpha)


@dataclass
class Fraction(Compressor):
    """Base of compressors that send a share of the units.

    Attributes:
        density: share of the units to send, above 0 and up to 1; at least one unit is sent.
    """

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.density <= 1:
            raise ValueError(f"density {self.density} is not within 0 (excluded) to 1")

    def level_of(self, units: int) -> int:
        """Return how many of that many units are sent: 1 or more."""
        return max(1, min(units, round(self.density * units)))
