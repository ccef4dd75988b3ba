# SPDX-License-Identifier: Apache-2.0
"""Compressors whose messages are linear in the gradient, so a switch can sum them.

A message is a flat array of *segments*, such as the columns of a factor. What ranks sum is shorter
than the gradient, and the sum of the messages is the message of the sum. Segments may differ in
size by orders of magnitude, but a block of lanes has one exponent. So each is multiplied by a power
of two that all ranks know: the inverse of its largest magnitude in the sum before.

**NaN and infinity** on a rank make the whole tensor NaN on all ranks, in that step. What was not
sent waits for the next one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, Compressed, Compressor, Selected, TensorState

_LARGEST_SCALE = 2.0**60


class Segments:
    """Joins segments of very different size into one message, and splits its sum.

    Attributes:
        sizes: elements of each segment.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._scales = np.ones(len(sizes))

    def join(self, parts: Sequence[Array], dtype: Any) -> Array:
        """Return the message of parts with the segments' sizes."""
        if not parts:
            return np.zeros(0, dtype)
        scaled = np.concatenate(parts) * np.repeat(self._scales, self.sizes)
        return scaled.astype(dtype)

    def split(self, total: Array) -> list[Array]:
        """Return the segments of a sum of messages in float64. Later messages are scaled by them.

        All ranks have the same sum, and so the same scales.
        """
        if not self.sizes:
            return []
        wide = total.astype(np.float64)
        sizes = np.asarray(self.sizes, np.int64)
        ends = np.cumsum(sizes)
        whole = np.split(wide / np.repeat(self._scales, sizes), ends[:-1])
        # reduceat has no empty segments.
        some = np.flatnonzero(sizes)
        largest = np.zeros(len(sizes))
        if len(some):
            largest[some] = np.maximum.reduceat(np.abs(wide), (ends - sizes)[some])
        known = np.isfinite(largest) & (largest > 0)
        _, exponents = np.frexp(np.where(known, largest, 0.5))
        scales = np.ldexp(self._scales, -exponents)
        self._scales = np.where(
            known, np.clip(scales, 1 / _LARGEST_SCALE, _LARGEST_SCALE), self._scales
        )
        return whole


@dataclass(slots=True)
class OperatorState(TensorState):
    """What an operator remembers of a tensor.

    Attributes:
        shapes: of the consecutive arrays in the tensor.
    """

    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass
class LinearOperator(Compressor):
    """Base of compressors whose messages have another size than the gradient.

    A step calls `propose`, `compress` and `decompress`, as with any `Compressor`.
    """

    narrow_proposals: ClassVar[bool] = True
    _shapes: dict[str, tuple[tuple[int, ...], ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    def describe(self, name: str, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes[name] = tuple(shapes)

    @abstractmethod
    def message(self, state: Any, wanted: Array, agreed: Array | None) -> tuple[Array, Array]:
        """Return the message to sum, and the part of `wanted` that it represents; both flat.

        `wanted` is float32 or wider, and must not be changed.
        """

    @abstractmethod
    def restored(self, state: Any, total: Array) -> Array:
        """Return the gradient that a sum of messages represents, flat."""

    @abstractmethod
    def message_size(self, state: Any) -> int:
        """Return how many numbers a message has, before it exists."""

    def begun(self, name: str, gradient: Array) -> Any:
        shapes = self._shapes.get(name)
        if shapes is None and isinstance(gradient, np.ndarray):
            shapes = (gradient.shape,)
        state: OperatorState = super().begun(name, gradient)
        assert shapes is not None, "super().begun takes arrays only"
        if sum(math.prod(shape) for shape in shapes) != gradient.size:
            raise ValueError(
                f"tensor {name!r} has {gradient.size} elements, its parts are {list(shapes)}"
            )
        state.shapes = shapes
        return state

    def compress(self, name: str, gradient: Array, agreed: Array | None = None) -> Compressed:
        state, wanted = self._taken(name, gradient)
        size = self.message_size(state)
        if wanted is None or not (agreed is None or np.isfinite(agreed).all()):
            # Somebody's numbers are not finite. A finite gradient waits for the next step.
            if wanted is not None and self.feedback:
                state.residual = wanted.reshape(gradient.shape)
            values, state.sent = np.full(size, np.nan, gradient.dtype), None
        else:
            wide = wanted.astype(np.promote_types(wanted.dtype, np.float32), copy=False)
            message, stands_for = self.message(state, wide, agreed)
            # `wanted` may be the caller's memory, which changes; all else is this step's alone.
            values = message.astype(gradient.dtype, copy=message is wide)
            if self.feedback:
                sent = stands_for.astype(wanted.dtype, copy=stands_for is wide)
                kernels.subtract(wanted, sent, None, 1)
                state.residual = wanted.reshape(gradient.shape)
                state.sent = sent.reshape(gradient.shape)
        state.step += 1
        blocks = -(-size // self.lanes)
        total = -(-gradient.size // self.lanes)
        return Compressed(
            values, self.lane_bits, size, gradient.size, blocks, total, None, 1.0, False
        )

    def decompress(self, name: str, total: Array) -> Array:
        state: Any = self.states[name]
        sent, state.sent = state.sent, None
        shape = state.residual.shape if state.residual is not None else None
        if not np.isfinite(total).all():
            if state.residual is not None and sent is not None:
                state.residual = state.residual + sent
            size = sum(math.prod(one) for one in state.shapes)
            result: Array = np.full(size, np.nan, total.dtype)
        else:
            result = self.restored(state, total).astype(total.dtype, copy=False)
        if shape is None:
            shape = state.shapes[0] if len(state.shapes) == 1 else result.shape
        return result.reshape(shape)

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        raise NotImplementedError("operators have messages, not a choice")

    def _new_state(self) -> OperatorState:
        return OperatorState()
