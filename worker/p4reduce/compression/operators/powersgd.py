# SPDX-License-Identifier: Apache-2.0
"""Two thin factors of each matrix: "powersgd:2"."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, Compressor
from p4reduce.compression.linear import LinearOperator, OperatorState, Segments
from p4reduce.compression.registry import Settings, register


@dataclass(slots=True)
class _Factors(OperatorState):
    """What is known of a tensor's matrices.

    Attributes:
        queries: the right factor of each matrix, shape (columns, rank); of the last sum.
        bases: the left factor of the step under way, orthonormal, shape (rows, rank).
        left, right: how the factors are put into messages.
    """

    queries: list[Array] = field(default_factory=list)
    bases: list[Array] = field(default_factory=list)
    left: Segments | None = None
    right: Segments | None = None


@dataclass
class PowerSGD(LinearOperator):
    """One step of subspace iteration on the sum of the ranks' matrices.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", NeurIPS 2019. With M the gradient of a matrix and Q the right factor
    of the step before: the ranks sum P = M Q, orthonormalise it, and sum Q = Mᵀ P. Both are sums,
    so a switch computes them, in narrow lanes too. Arrays of one dimension, and those that factors
    would make larger, are sent whole. Ranks have the same result bit for bit where their machines
    multiply matrices alike.

    Attributes:
        rank: columns of the factors, 1 or more.
    """

    rank: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} must be 1 or more")

    def propose(self, name: str, gradient: Array) -> Array | None:
        state: _Factors = self.begun(name, gradient)
        self._prepare(state, gradient.dtype)
        assert state.left is not None, "_prepare made it"
        if state.wanted is None:
            return np.full(sum(state.left.sizes), np.nan, gradient.dtype)
        wide = state.wanted.astype(_wide(gradient.dtype), copy=False)
        matrices = zip(self._matrices(state, wide), state.queries, strict=True)
        columns = [column for matrix, query in matrices for column in (matrix @ query).T]
        return state.left.join(columns, gradient.dtype)

    def message(self, state: _Factors, wanted: Array, agreed: Array | None) -> tuple[Array, Array]:
        assert state.left is not None, "propose made it"
        assert state.right is not None, "propose made it"
        assert agreed is not None, "PowerSGD proposes"
        columns = state.left.split(agreed)
        rank = self.rank
        state.bases = [
            np.linalg.qr(np.stack(columns[n * rank : (n + 1) * rank], axis=1))[0].astype(
                wanted.dtype
            )
            for n in range(len(state.queries))
        ]
        stands_for = kernels.lend(self.spare, wanted.size, wanted.dtype)
        others = self._others(state, wanted)
        for place, other in zip(self._others(state, stands_for), others, strict=True):
            place[...] = other
        factors = []
        matrices = self._matrices(state, wanted)
        for matrix, basis, place in zip(
            matrices, state.bases, self._matrices(state, stands_for), strict=True
        ):
            factor = matrix.T @ basis
            np.matmul(basis, factor.T, out=place)
            factors += list(factor.T)
        return state.right.join([*factors, *others], wanted.dtype), stands_for

    def restored(self, state: _Factors, total: Array) -> Array:
        assert state.right is not None, "propose made it"
        segments = state.right.split(total)
        wide, size = _wide(total.dtype), sum(math.prod(shape) for shape in state.shapes)
        result = kernels.lend(self.spare, size, wide)
        rank = self.rank
        for n, place in enumerate(self._matrices(state, result)):
            factor = np.stack(segments[n * rank : (n + 1) * rank], axis=1).astype(wide)
            np.matmul(state.bases[n], factor.T, out=place)
            if factor.any():
                state.queries[n] = factor
        for place, segment in zip(
            self._others(state, result), segments[rank * len(state.queries) :], strict=True
        ):
            place[...] = segment
        return result

    def message_size(self, state: _Factors) -> int:
        assert state.right is not None, "propose made it"
        return sum(state.right.sizes)

    def _prepare(self, state: _Factors, dtype: np.dtype[Any]) -> None:
        """At the first step, draw the right factors: the same on all ranks."""
        if state.left is not None:
            return
        random = np.random.default_rng(self.seed)
        sizes = [self._factored(shape) for shape in state.shapes]
        matrices = [size for size in sizes if size is not None]
        state.queries = [
            random.standard_normal((columns, self.rank)).astype(_wide(dtype))
            for _, columns in matrices
        ]
        state.left = Segments([rows for rows, _ in matrices for _ in range(self.rank)])
        others = [
            math.prod(shape)
            for shape, size in zip(state.shapes, sizes, strict=True)
            if size is None
        ]
        thin = [columns for _, columns in matrices for _ in range(self.rank)]
        state.right = Segments([*thin, *others])

    def _factored(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the rows and columns of an array; None: it is sent whole."""
        if len(shape) < 2:
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        smaller = self.rank * (rows + columns) < rows * columns
        return (rows, columns) if smaller and self.rank <= min(rows, columns) else None

    def _matrices(self, state: _Factors, flat: Array) -> list[Array]:
        """Return the matrices in a flat tensor, as views."""
        return [
            flat[start : start + math.prod(shape)].reshape(size)
            for start, shape in _places(state.shapes)
            if (size := self._factored(shape)) is not None
        ]

    def _others(self, state: _Factors, flat: Array) -> list[Array]:
        """Return the other arrays in a flat tensor, as flat views."""
        return [
            flat[start : start + math.prod(shape)]
            for start, shape in _places(state.shapes)
            if self._factored(shape) is None
        ]

    def _new_state(self) -> _Factors:
        return _Factors()


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.promote_types(dtype, np.float32)


def _places(shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, Any]]:
    """Return where each array begins in a flat tensor."""
    starts = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    return list(zip(starts, shapes, strict=False))


@register("powersgd", "powersgd:RANK")
def _by_name(given: Settings) -> Compressor:
    rank = given.number()
    if rank != int(rank):
        raise ValueError(f"powersgd: a whole number of columns is needed, not {given.argument!r}")
    return PowerSGD(**given.common, rank=int(rank))
