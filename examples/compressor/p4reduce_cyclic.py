# SPDX-License-Identifier: Apache-2.0
"""Each step sends another part of the gradient, in turn: "cyclic:4" a quarter in each.

All ranks send the same blocks, so a result never comes in halves. What waits is sent within so
many steps as there are parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from p4reduce.compression import (
    Compressor,
    Selected,
    Settings,
    TensorState,
    register,
)
from p4reduce.compression.base import Array


@dataclass
class Cyclic(Compressor):
    """Every `parts`-th unit, beginning one further in each step.

    Attributes:
        parts: 1 or more; in how many steps everything is sent once.
    """

    parts: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise ValueError(f"parts {self.parts} must be at least 1")

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        """See `Compressor.select`."""
        units = np.arange(state.step % self.parts, -(-wanted.size // self.unit), self.parts)
        return Selected(units)


@register("cyclic", "cyclic:PARTS")
def by_name(given: Settings) -> Compressor:
    """What "cyclic:4" makes."""
    return Cyclic(**given.common, parts=int(given.number()))
