# SPDX-License-Identifier: Apache-2.0
"""The units of most energy: "topk:0.01"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.levels import unit_energy
from p4reduce.compression.registry import Settings, register
from p4reduce.compression.shares import Fraction, selected


@dataclass
class TopK(Fraction):
    """A fixed share of the units: those of most energy (Aji and Heafield, EMNLP 2017)."""

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = unit_energy(wanted, self.unit)
        level = self.level_of(len(energy))
        return selected(wanted, energy, np.argpartition(-energy, level - 1)[:level], self.unit)


@register("topk", "topk:SHARE")
def _by_name(given: Settings) -> Compressor:
    return TopK(**given.common, density=given.number(), switch_over=given.switch_over)
