# SPDX-License-Identifier: Apache-2.0
"""Slices of the gradient by their principal components: "gradiveq:16"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from p4reduce.compression.base import Array, Compressor
from p4reduce.compression.linear import LinearOperator, OperatorState
from p4reduce.compression.registry import Settings, register

SLICE = 256
"""Numbers of a slice."""


@dataclass(slots=True)
class _Projection(OperatorState):
    """What is known of a tensor.

    Attributes:
        basis: orthonormal, shape (SLICE, components); None: the whole gradient is sent.
        left: steps with this basis that are left.
    """

    basis: Array | None = None
    left: int = 0


@dataclass
class GradiVeQ(LinearOperator):
    """Projections of slices on the principal components of the slices of an earlier sum.

    Yu et al., "GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient Aggregation in
    Distributed CNN Training", NeurIPS 2018. The projection is linear, so a switch sums what it
    gives. Every `period` steps the whole gradient is sent, and all ranks compute the components
    of its sum, which is the same on all of them. The paper sends projections as quantised vectors;
    here they are numbers, in narrow lanes if these are asked for. Feedback, which the paper lacks,
    keeps what the projection leaves out.

    Attributes:
        components: numbers sent of each slice of 256, 1 to 256.
        period: steps between two gradients that are sent whole, 2 or more.
    """

    components: int = 16
    period: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.components <= SLICE or self.period < 2:
            raise ValueError(
                f"{self.components} components: 1 to {SLICE} are needed; period {self.period}: "
                "2 or more"
            )

    def message(
        self, state: _Projection, wanted: Array, agreed: Array | None
    ) -> tuple[Array, Array]:
        if state.basis is None:
            return wanted, wanted
        projected = _slices(wanted) @ state.basis
        return projected.reshape(-1), (projected @ state.basis.T).reshape(-1)[: wanted.size]

    def restored(self, state: _Projection, total: Array) -> Array:
        size = sum(math.prod(shape) for shape in state.shapes)
        if state.basis is None:
            whole = total.astype(np.float64)
            slices = _slices(whole)
            # In ascending order of what they explain.
            state.basis = np.linalg.eigh(slices.T @ slices)[1][:, -self.components :]
            state.left = self.period - 1
            return whole
        rows = total.astype(np.float64).reshape(-1, self.components)
        result: Array = (rows @ state.basis.T).reshape(-1)[:size]
        state.left -= 1
        if not state.left:
            state.basis = None
        return result

    def message_size(self, state: _Projection) -> int:
        size = sum(math.prod(shape) for shape in state.shapes)
        return size if state.basis is None else -(-size // SLICE) * self.components

    def _new_state(self) -> _Projection:
        return _Projection()


def _slices(flat: Array) -> Array:
    """Return a flat tensor as rows of a slice each, the last one filled up with zeros."""
    rows = -(-flat.size // SLICE)
    padded: Array = np.zeros(rows * SLICE)
    padded[: flat.size] = flat
    slices: Array = padded.reshape(rows, SLICE)
    return slices


@register("gradiveq", "gradiveq:COMPONENTS")
def _by_name(given: Settings) -> Compressor:
    components = given.number()
    if components != int(components):
        raise ValueError(f"gradiveq: whole components are needed, not {given.argument!r}")
    return GradiVeQ(**given.common, components=int(components))
