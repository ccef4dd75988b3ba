# SPDX-License-Identifier: Apache-2.0
"""Slices of the gradient by their principal components: "gradiveq:16"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, Compressor
from p4reduce.compression.linear import LinearOperator, OperatorState
from p4reduce.compression.registry import Settings, register

SLICE = 256
"""Numbers of a slice."""

_AT_A_TIME = 1024 * SLICE  # numbers that are widened at once


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
        basis = state.basis.astype(wanted.dtype)
        whole = wanted.size - wanted.size % SLICE
        projected = np.empty((-(-wanted.size // SLICE), self.components), wanted.dtype)
        np.matmul(wanted[:whole].reshape(-1, SLICE), basis, out=projected[: whole // SLICE])
        if whole < wanted.size:
            projected[-1] = wanted[whole:] @ basis[: wanted.size - whole]
        return projected.reshape(-1), self._expanded(projected, basis, wanted.size)

    def restored(self, state: _Projection, total: Array) -> Array:
        size = sum(math.prod(shape) for shape in state.shapes)
        if state.basis is None:
            # In ascending order of what they explain.
            state.basis = np.linalg.eigh(_covariance(total))[1][:, -self.components :]
            state.left = self.period - 1
            return total
        wide = np.promote_types(total.dtype, np.float32)
        rows = total.astype(wide, copy=False).reshape(-1, self.components)
        result = self._expanded(rows, state.basis.astype(wide), size)
        state.left -= 1
        if not state.left:
            state.basis = None
        return result

    def _expanded(self, projected: Array, basis: Array, size: int) -> Array:
        """Return what projections stand for, flat."""
        result = kernels.lend(self.spare, size, projected.dtype)
        whole = size - size % SLICE
        rows = projected[: whole // SLICE]
        np.matmul(rows, basis.T, out=result[:whole].reshape(-1, SLICE))
        if whole < size:
            result[whole:] = basis[: size - whole] @ projected[-1]
        return result

    def message_size(self, state: _Projection) -> int:
        size = sum(math.prod(shape) for shape in state.shapes)
        return size if state.basis is None else -(-size // SLICE) * self.components

    def _new_state(self) -> _Projection:
        return _Projection()


def _covariance(total: Array) -> Array:
    """Return the sum of the products of each slice with itself, shape (SLICE, SLICE), float64."""
    result: Array = np.zeros((SLICE, SLICE))
    for start in range(0, total.size, _AT_A_TIME):
        part = total[start : start + _AT_A_TIME].astype(np.float64)
        whole = part.size - part.size % SLICE
        slices = part[:whole].reshape(-1, SLICE)
        result += slices.T @ slices
        rest = part[whole:]
        result[: rest.size, : rest.size] += rest[:, None] * rest
    return result


@register("gradiveq", "gradiveq:COMPONENTS")
def _by_name(given: Settings) -> Compressor:
    components = given.number()
    if components != int(components):
        raise ValueError(f"gradiveq: whole components are needed, not {given.argument!r}")
    return GradiVeQ(**given.common, components=int(components))
