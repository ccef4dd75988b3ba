# SPDX-License-Identifier: Apache-2.0
"""The units of most energy: "topk:0.01"."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.kernels import largest
from p4reduce.compression.registry import Settings, register
from p4reduce.compression.shares import Fraction, selected


@dataclass
class TopK(Fraction):
    """A fixed share of the units: those of most energy, of equal ones the first.

    Aji and Heafield, EMNLP 2017.
    """

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        energy = state.energies
        return selected(energy, largest(energy, self.level_of(len(energy))))


@register("topk", "topk:SHARE")
def _by_name(given: Settings) -> Compressor:
    return TopK(**given.common, density=given.number(), switch_over=given.switch_over)
