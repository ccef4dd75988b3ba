# SPDX-License-Identifier: Apache-2.0
"""Arrays as the protocol sees them: rows of one block each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.quantise import block_exponents

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_ALL = slice(None)


class Blocks:
    """A flat contiguous array as rows of one block each, the last one padded with zeros."""

    def __init__(self, flat: Array, lanes: int) -> None:
        self.dtype = flat.dtype
        full = len(flat) // lanes
        self._full = full
        self._rows = flat[: full * lanes].reshape(full, lanes)
        self._tail = flat[full * lanes :]
        self._lanes = lanes

    def __len__(self) -> int:
        return self._full + bool(len(self._tail))

    def measure(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """Return each block's exponent and whether it is not all zeros."""
        exponents = np.empty(len(self), np.uint8)
        nonzero = np.empty(len(self), np.bool_)
        block_exponents(self._rows, exponents[: self._full], nonzero[: self._full])
        if len(self._tail):
            row = np.zeros((1, self._lanes), self.dtype)
            row[0, : len(self._tail)] = self._tail
            block_exponents(row, exponents[self._full :], nonzero[self._full :])
        return exponents, nonzero

    def gather(self, blocks: Indices, rows: Array) -> None:
        """Copy blocks into rows of the same dtype."""
        if self._full:
            self._rows.take(blocks, axis=0, out=rows, mode="clip")
        if len(self._tail):
            last = blocks == self._full
            if np.count_nonzero(last):
                at = int(np.argmax(last))
                rows[at] = 0
                rows[at, : len(self._tail)] = self._tail

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        """Copy rows, which hold some columns of blocks, into the blocks, each at most once."""
        if len(self._tail):
            last = blocks == self._full
            if np.count_nonzero(last):
                part = self._tail[columns]
                part[:] = rows[last][0, : len(part)]
                blocks, rows = blocks[~last], rows[~last]
        if columns == _ALL:
            self._rows[blocks] = rows  # faster than with the columns
        else:
            self._rows[blocks, columns] = rows

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        """Set whole blocks, given by numbers or by a mask of all, to one value."""
        if blocks.dtype == np.bool_:
            blocks = np.flatnonzero(blocks)
        if len(self._tail) and (blocks == self._full).any():
            self._tail[:] = value
            blocks = blocks[blocks != self._full]
        self._rows[blocks] = value
