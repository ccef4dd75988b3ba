# SPDX-License-Identifier: Apache-2.0
"""Random units: "randomk:0.01"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p4reduce.compression.base import (
    Array,
    Compressed,
    Compressor,
    Selected,
    TensorState,
)
from p4reduce.compression.costs import IntArray
from p4reduce.compression.registry import Settings, register
from p4reduce.compression.shares import Fraction


@dataclass
class RandomK(Fraction):
    """A fixed share of random units. All ranks choose the same ones if they share the seed.

    With feedback they are sent as they are; without it they are scaled by 1/density, so that the
    mean is right (Stich et al., NeurIPS 2018).
    """

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        count = -(-wanted.size // self.unit)
        units = self._draw(count)
        if self.feedback:
            return Selected(units)
        factor = float(wanted.dtype.type(count / len(units)))
        return Selected(units, factors=np.full(len(units), factor))

    def _send_whole(self, state: TensorState, gradient: Array) -> Compressed:
        self._draw(-(-gradient.size // self.unit))  # or the ranks' next draws would differ
        return super()._send_whole(state, gradient)

    def _draw(self, count: int) -> IntArray:
        level = self.level_of(count)
        return self.random.choice(count, level, replace=False, shuffle=False)


@register("randomk", "randomk:SHARE")
def _by_name(given: Settings) -> Compressor:
    return RandomK(**given.common, density=given.number(), switch_over=given.switch_over)
