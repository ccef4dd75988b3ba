# SPDX-License-Identifier: Apache-2.0
"""The results of sums that do not wait for all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import LaneOverflowError, P4ReduceError
from p4reduce.late.negotiation import (
    MOST_DIMENSIONS,
    NegotiationRow,
    dtype_named,
    dtype_number,
    wide,
)

_FIXED = 5
_HEAD = _FIXED + MOST_DIMENSIONS
_THERE, _COUNTED = 1, 2  # of a rank, as bits


@dataclass(frozen=True)
class PartialSum:
    """A sum that did not wait for all ranks; the same on all of them, but for `included`.

    Attributes:
        result: the sum or the mean, in the shape and dtype of the array. From `catch_up`: the sum,
            of float16 as float32.
        members: the ranks whose numbers are in it, in ascending order.
        missing: the ranks that had not called the sum when it was decided, lost ones included.
        included: whether this rank's numbers are in it.
        number: which sum it is, from 0.
    """

    result: npt.NDArray[Any]
    members: tuple[int, ...]
    missing: tuple[int, ...]
    included: bool
    number: int


@dataclass(frozen=True)
class Total:
    """A kept sum.

    Attributes:
        number: which sum it is, from 0.
        total: the numbers; meaningless after an error.
        kind: the dtype of the ranks' arrays; that of the numbers is `negotiation.wide` of it.
        present: the ranks that had called it.
        members: the ranks whose numbers are in it.
        digest: of the call.
        error: the harmless error that it ended with on all ranks, or None.
    """

    number: int
    total: npt.NDArray[Any]
    kind: np.dtype[Any]
    present: tuple[int, ...]
    members: tuple[int, ...]
    digest: int
    error: P4ReduceError | None = None

    def is_of(self, row: NegotiationRow) -> bool:
        """Whether it is the sum that a rank has called."""
        mine = (self.total.shape, self.kind, self.digest)
        return mine == (row.shape, row.kind, row.digest)

    def head(self, size: int) -> npt.NDArray[np.int64]:
        """Return everything but the numbers, for a rank that lacks them; see `empty_head`."""
        row = empty_head(size)
        shape = self.total.shape
        failed = self.error is not None
        dtype = dtype_number(self.kind)
        row[:_FIXED] = self.number, dtype, self.digest, failed, len(shape)
        row[_FIXED : _FIXED + len(shape)] = shape
        row[[_HEAD + rank for rank in self.present]] |= _THERE
        row[[_HEAD + rank for rank in self.members]] |= _COUNTED
        return row

    @classmethod
    def of_head(cls, row: npt.NDArray[np.int64]) -> Total:
        """Return the sum that a head describes, with room for the numbers."""
        number, dtype, digest, failed, dimensions = row[:_FIXED].tolist()
        shape = tuple(row[_FIXED : _FIXED + dimensions].tolist())
        ranks, kind = row[_HEAD:], dtype_named(dtype)
        return cls(
            number,
            np.empty(shape, wide(kind)),
            kind,
            tuple(np.flatnonzero(ranks & _THERE).tolist()),
            tuple(np.flatnonzero(ranks & _COUNTED).tolist()),
            digest,
            overflow(number) if failed else None,
        )


def empty_head(size: int) -> npt.NDArray[np.int64]:
    """Return room for a head; shape (13 + size,)."""
    return np.zeros(_HEAD + size, np.int64)


def overflow(number: int) -> LaneOverflowError:
    """Return the error of a sum that left the lanes' range."""
    return LaneOverflowError(f"sum {number} left the lanes' range; a wider dtype has room for it")
