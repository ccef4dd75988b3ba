# SPDX-License-Identifier: Apache-2.0
"""Arrays as the protocol sees them: rows of one block each. measure.py looks at their contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from p4reduce_native.frame_lanes import SUMS_WORDS

from p4reduce.tensors.measure import BlockTables, block_exponents
from p4reduce.wire.format import PAYLOAD_BYTES, Format

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_ALL = slice(None)


class Piece(NamedTuple):
    """Blocks that are adjacent in memory.

    Attributes:
        blocks: their number.
        full: the number of whole blocks; at most one more is partial.
        tail_bytes: the bytes of the partial one.
        address: of the first; 0: they read as zeros, and writes are dropped.
    """

    blocks: int
    full: int
    tail_bytes: int
    address: int


class BlockMemory(NamedTuple):
    """The place of blocks in memory.

    A source or target whose blocks are in memory unchanged has a method `memory`; machine code then
    accesses them directly.

    Attributes:
        pieces: in order.
        places: of each block among the pieces' blocks; None: equal to its number.
    """

    pieces: Sequence[Piece]
    places: Indices | None = None


class BlockRows(Protocol):
    """Blocks that can be read."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements before they are quantised."""

    def gather(self, blocks: Indices, rows: Array) -> None:
        """Copy blocks into rows, shape (blocks, lanes), of the source's dtype."""


class BlockSource(BlockRows, Protocol):
    """The blocks that a rank contributes to a collective. It may lack some."""

    def __len__(self) -> int:
        """Return the number of blocks, the same on all ranks."""

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        """Find each block's exponent, and whether it is not all zeros.

        Args:
            tables: take what is found; they have zeros there.
            first: the place of the first block in the tables.
        """

    def section(self, first: int, stop: int) -> BlockSource:
        """Return consecutive blocks as a source of their own."""


class BlockTarget(Protocol):
    """The place where a rank stores the sums."""

    def section(self, first: int, stop: int) -> BlockTarget:
        """Return consecutive blocks as a target of their own.

        Several threads may write to disjoint sections at once.
        """

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        """Store rows with some columns of blocks. A block may come twice, with equal rows."""

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        """Set whole blocks, given by numbers or by a mask of all, to one value."""


class Blocks:
    """A flat contiguous array as rows of one block each, the last one padded with zeros.

    Args:
        flat: the array.
        lanes: elements of a block.
        residual: as long as `flat`, of its dtype. `measure` adds it to `flat`; afterwards it takes
            what rounding to lanes leaves out.
    """

    def __init__(self, flat: Array, lanes: int, *, residual: Array | None = None) -> None:
        self.dtype = flat.dtype
        full = len(flat) // lanes
        self._flat = flat
        self._full = full
        self._rows = flat[: full * lanes].reshape(full, lanes)
        self._tail = flat[full * lanes :]
        self._lanes = lanes
        self._count = full + bool(len(self._tail))
        self._address: int = flat.ctypes.data
        self.residual = None if residual is None else Blocks(residual, lanes)

    def __len__(self) -> int:
        return self._count

    def section(self, first: int, stop: int) -> Blocks:
        some = slice(first * self._lanes, stop * self._lanes)
        residual = None if self.residual is None else self.residual._flat[some]
        return Blocks(self._flat[some], self._lanes, residual=residual)

    def memory(self) -> BlockMemory:
        return BlockMemory([Piece(self._count, self._full, self._tail.nbytes, self._address)])

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        """Find each block's exponent, and whether it is not all zeros, as for `BlockSource`."""
        if self._full:
            residual = None if self.residual is None else self.residual._rows
            block_exponents(self._rows, tables, first, residual, self._address)
        if self.residual is not None:
            self._tail += self.residual._tail
        if len(self._tail):
            row = np.zeros((1, self._lanes), self.dtype)
            row[0, : len(self._tail)] = self._tail
            block_exponents(row, tables, first + self._full)

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
        """Store rows, which hold some columns of blocks, each block at most once."""
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
        if blocks.dtype == np.bool_ and blocks.all():
            self._rows[:] = value
            self._tail[:] = value
            return
        blocks = _numbers(blocks)
        if len(self._tail) and (blocks == self._full).any():
            self._tail[:] = value
            blocks = blocks[blocks != self._full]
        self._rows[blocks] = value


def _numbers(blocks: Indices | npt.NDArray[np.bool_]) -> Indices:
    """Turn a mask of all blocks into numbers."""
    if blocks.dtype == np.bool_:
        return np.flatnonzero(blocks)
    return blocks.astype(np.int64, copy=False)


class RawBlocks:
    """The bytes of a C-contiguous array of any dtype, 4 per lane.

    If only one rank has a lane, the sum is its bytes, whatever they mean. A negative zero is not
    all zero bits, so it is sent.
    """

    dtype = np.dtype(np.int32)
    # A rank cannot tell bytes from numbers that are too large for a sum.
    format = Format.WRAP32 if SUMS_WORDS else Format.INT32

    def __init__(self, array: Array) -> None:
        flat = array.reshape(-1)
        self._flat = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        self._bytes = Blocks(self._flat, PAYLOAD_BYTES)

    def __len__(self) -> int:
        return len(self._bytes)

    def section(self, first: int, stop: int) -> RawBlocks:
        return RawBlocks(self._flat[first * PAYLOAD_BYTES : stop * PAYLOAD_BYTES])

    def memory(self) -> BlockMemory:
        return self._bytes.memory()

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        """Find exponents of 0, as for integers, and which blocks are not all zeros."""
        self._bytes.measure(tables, first)

    def gather(self, blocks: Indices, rows: Array) -> None:
        self._bytes.gather(blocks, rows.view(np.uint8))

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        if columns != _ALL:
            size = self.dtype.itemsize
            start, stop, _ = columns.indices(self.format.lanes)
            columns = slice(start * size, stop * size)
        self._bytes.scatter(blocks, rows.view(np.uint8), columns)

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        """Set each byte of blocks to a value, as for `BlockTarget`."""
        self._bytes.fill(blocks, value)


class Absent:
    """Blocks that this rank lacks: zeros as a source, and dropped as a target."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.dtype = dtype
        self._count = count

    def __len__(self) -> int:
        return self._count

    def section(self, first: int, stop: int) -> Absent:
        return Absent(self.dtype, stop - first)

    def memory(self) -> BlockMemory:
        return BlockMemory([Piece(self._count, self._count, 0, 0)])

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        """All are zeros, as the tables say already."""

    def gather(self, blocks: Indices, rows: Array) -> None:
        rows[:] = 0

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        """Store rows, as for `BlockTarget`."""

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        """Drop the value."""


class InPlaceBlocks(BlockSource, BlockTarget, Protocol):
    """A source that is also a target."""

    def section(self, first: int, stop: int) -> InPlaceBlocks:
        """Return a section, as for `BlockSource` and `BlockTarget`."""

    def memory(self) -> BlockMemory:
        """Return the memory, as for `BlockMemory`."""


class Pieces:
    """Several sources or targets in a row. Each starts with a block of its own."""

    def __init__(self, pieces: Sequence[InPlaceBlocks]) -> None:
        self.dtype = pieces[0].dtype
        self._pieces = pieces
        self._ends = np.cumsum([len(piece) for piece in pieces])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def section(self, first: int, stop: int) -> Pieces:
        some: list[InPlaceBlocks] = []
        for piece, end in zip(self._pieces, self._ends.tolist(), strict=True):
            start = end - len(piece)
            if max(first, start) < min(stop, end):
                some.append(piece.section(max(first, start) - start, min(stop, end) - start))
        return Pieces(some or [self._pieces[0].section(0, 0)])

    def memory(self) -> BlockMemory:
        return BlockMemory([piece for part in self._pieces for piece in part.memory().pieces])

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        for piece in self._pieces:
            piece.measure(tables, first)
            first += len(piece)

    def gather(self, blocks: Indices, rows: Array) -> None:
        for piece, which, inner in self._split(blocks):
            if which is None:
                piece.gather(inner, rows)
            else:
                some = np.empty((len(inner), rows.shape[1]), rows.dtype)
                piece.gather(inner, some)
                rows[which] = some

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        for piece, which, inner in self._split(blocks):
            piece.scatter(inner, rows if which is None else rows[which], columns)

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        for piece, _, inner in self._split(_numbers(blocks)):
            piece.fill(inner, value)

    def _split(
        self, blocks: Indices
    ) -> Iterator[tuple[InPlaceBlocks, npt.NDArray[np.bool_] | None, Indices]]:
        """Tell blocks apart by piece: which ones, None for all, and their numbers within it."""
        numbers = np.searchsorted(self._ends, blocks, side="right")
        touched = np.unique(numbers).tolist()
        for number in touched:
            piece = self._pieces[number]
            start = self._ends[number] - len(piece)
            if len(touched) == 1:
                yield piece, None, blocks - start
            else:
                which = numbers == number
                yield piece, which, blocks[which] - start
