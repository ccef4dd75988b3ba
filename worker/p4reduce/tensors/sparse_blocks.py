# SPDX-License-Identifier: Apache-2.0
"""Blocks of arrays that are never built: sources and targets of the size of what is not zero.

An array is given as *runs*: it is cut into units of equally many elements, and those that are not
zero are kept. A row of an embedding's gradient is a unit, and so is each number of a sparse matrix.
Besides the runs, only the arrays of one entry per block are as long as the dense array would be.
They have 1 byte for a flag, 1 for an exponent and 8 for the next block, against 1,024.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.tensors.blocks import Array, BlockSource, Indices
from p4reduce.tensors.measure import BlockTables, block_exponents

_SLAB_BYTES = 1 << 20


@dataclass(frozen=True)
class Runs:
    """Some units of a flat array, the rest of which is zero.

    Attributes:
        indices: which units, ascending and distinct; shape (k,).
        values: shape (k, elements of a unit). What the last unit has beyond `size` is zero.
        size: elements of the whole array.
    """

    indices: Indices
    values: Array
    size: int

    @property
    def width(self) -> int:
        """Elements of a unit."""
        return int(self.values.shape[1])

    @property
    def count(self) -> int:
        """Units of the whole array."""
        return -(-self.size // self.width)

    def touched(self, lanes: int) -> int:
        """Return how many blocks the units are in."""
        starts = self._starts()
        first, last = starts // lanes, (starts + self.width - 1) // lanes
        return int((last - first + 1).sum()) - int(np.count_nonzero(first[1:] == last[:-1]))

    def packed(self, union: Indices) -> Array:
        """Return the units of a union that has all of these, one after the other."""
        rows = np.zeros((len(union), self.width), self.values.dtype)
        rows[np.searchsorted(union, self.indices)] = self.values
        return rows

    def source(self, lanes: int) -> BlockSource:
        """Return the array as blocks, in the form that needs less memory."""
        count = -(-self.size // lanes)
        width, starts = self.width, self._starts()
        first = starts // lanes
        touched = _distinct(_ranges(first, (starts + width - 1) // lanes - first + 1))
        as_blocks = len(touched) * lanes * self.values.itemsize
        as_elements = self.values.size * (self.values.itemsize + starts.itemsize)
        if as_elements < as_blocks:
            places = _ranges(starts, np.full(len(starts), width))
            inside = np.searchsorted(places, self.size)
            values = self.values.reshape(-1)[:inside].copy()  # which may be the caller's
            return _ElementBlocks(places[:inside], values, count, lanes)
        rows = np.zeros((len(touched), lanes), self.values.dtype)
        if len(touched):
            # The blocks of a run follow each other in `touched` as they do in the array.
            places = np.searchsorted(touched, first) * lanes + starts % lanes
            windows = np.lib.stride_tricks.sliding_window_view
            windows(rows.reshape(-1), width, writeable=True)[places] = self.values
        inside = np.searchsorted(touched, count)
        return _SomeBlocks(touched[:inside], rows[:inside], count)

    def dense(self) -> Array:
        """Return the array, flat."""
        whole = np.zeros((self.count, self.width), self.values.dtype)
        whole[self.indices] = self.values
        return whole.reshape(-1)[: self.size]

    def _starts(self) -> Indices:
        return self.indices if self.width == 1 else self.indices * self.width


class _SomeBlocks:
    """Blocks kept whole."""

    def __init__(self, numbers: Indices, rows: Array, count: int) -> None:
        self.dtype = rows.dtype
        self._numbers = numbers
        self._rows = rows
        self._count = count

    def __len__(self) -> int:
        return self._count

    def section(self, first: int, stop: int) -> _SomeBlocks:
        inside = slice(*np.searchsorted(self._numbers, (first, stop)).tolist())
        return _SomeBlocks(self._numbers[inside] - first, self._rows[inside], stop - first)

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        of_some = BlockTables(len(self._rows))
        block_exponents(self._rows, of_some)
        places = self._numbers + first
        tables.exponents[places], tables.nonzero[places] = of_some.exponents[:-1], of_some.nonzero

    def gather(self, blocks: Indices, rows: Array) -> None:
        """See `blocks.BlockSource`; only for blocks that are not all zeros."""
        self._rows.take(np.searchsorted(self._numbers, blocks), axis=0, out=rows, mode="clip")


class _ElementBlocks:
    """Elements kept one by one, where most of each block is zero."""

    def __init__(self, places: Indices, values: Array, count: int, lanes: int) -> None:
        self.dtype = values.dtype
        self._places = places
        self._values = values
        self._count = count
        self._lanes = lanes
        self._touched, numbers = _distinct_neighbours(places // lanes)
        self._starts = np.zeros(count + 1, np.int64)  # where each block's elements begin
        self._starts[self._touched + 1] = numbers
        np.cumsum(self._starts, out=self._starts)

    def __len__(self) -> int:
        return self._count

    def section(self, first: int, stop: int) -> _ElementBlocks:
        inside = slice(int(self._starts[first]), int(self._starts[stop]))
        places = self._places[inside] - first * self._lanes
        return _ElementBlocks(places, self._values[inside], stop - first, self._lanes)

    def measure(self, tables: BlockTables, first: int = 0) -> None:
        if len(self._touched):
            of_each = BlockTables(len(self._values))
            block_exponents(self._values[:, None], of_each)
            starts, places = self._starts[self._touched], self._touched + first
            tables.exponents[places] = np.maximum.reduceat(of_each.exponents[:-1], starts)
            tables.nonzero[places] = np.logical_or.reduceat(of_each.nonzero, starts)

    def gather(self, blocks: Indices, rows: Array) -> None:
        rows[:] = 0
        first = self._starts[blocks]
        lengths = self._starts[blocks + 1] - first
        which = _ranges(first, lengths)
        shifts = np.repeat((np.arange(len(blocks)) - blocks) * self._lanes, lengths)
        rows.reshape(-1)[self._places[which] + shifts] = self._values[which]


class SparseSums:
    """A target that keeps only what is not zero.

    It holds half-blocks whole or elements one by one, whichever is smaller. Results come in halves
    often where the input is sparse; see docs/protocol.md, "Halves and padding".
    """

    def __init__(self, dtype: np.dtype[Any], size: int, lanes: int) -> None:
        self.dtype = dtype
        self.size = size
        self._lanes = lanes
        self._half = lanes // 2
        self._halves = _Slabs(self._half, dtype)
        self._elements = _Slabs(1, dtype)
        self._lock = threading.Lock()  # sections are written to by several threads

    def section(self, first: int, stop: int) -> _Section:
        return _Section(self, first)

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        first, stop, _ = columns.indices(self._lanes)
        parts = (stop - first) // self._half
        numbers = (blocks[:, None] * 2 + first // self._half + np.arange(parts)).reshape(-1)
        halves = rows.astype(self.dtype, copy=False).reshape(-1, self._half)
        as_elements = np.count_nonzero(halves) * (halves.itemsize + numbers.itemsize)
        if as_elements < halves.nbytes:
            flat = halves.reshape(-1)
            which = np.flatnonzero(flat != 0)
            number, inner = np.divmod(which, self._half)
            with self._lock:
                self._elements.add(numbers[number] * self._half + inner, flat[which, None])
        else:
            with self._lock:
                self._halves.add(numbers, halves)

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        """Set blocks to a value, as for `blocks.BlockTarget`. Zeros are not stored."""
        if value == 0:
            return
        places = _ranges(blocks * self._lanes, np.full(len(blocks), self._lanes))
        places = places[places < self.size]
        with self._lock:
            self._elements.add(places, np.full((len(places), 1), value, self.dtype))

    def elements(self) -> tuple[Indices, Array]:
        """Return places, ascending and distinct, and values of everything that is not zero."""
        parts = [(starts, values[:, 0]) for starts, values in self._parts(1)]
        places, values = (np.concatenate(some) for some in zip(*parts, strict=True))
        distinct, last = np.unique(places[::-1], return_index=True)
        return distinct, values[::-1][last]

    def rows(self, width: int) -> tuple[Indices, Array]:
        """Return the rows that are not all zeros: their numbers, ascending, and contents.

        The array is taken as rows of `width` elements, the last one padded with zeros.
        """
        if width == 1:
            places, single = self.elements()
            return places, single.reshape(-1, 1)
        grain = math.gcd(width, self._half)
        numbers = np.unique(
            np.concatenate([_distinct(starts // width) for starts, _ in self._parts(grain)])
        )
        rows = np.zeros((len(numbers), width), self.dtype)
        for starts, values in self._parts(grain):
            which, times = _distinct_neighbours(starts // width)
            shifts = np.repeat((np.searchsorted(numbers, which) - which) * width, times)
            length = values.shape[1]
            rows.reshape(-1, length)[(starts + shifts) // length] = values
        return numbers, rows

    def _parts(self, grain: int) -> Iterator[tuple[Indices, Array]]:
        """Return what came and is not all zeros, about a slab at a time.

        Where each part begins, and what it holds: `grain` elements, a divisor of half a block, or
        one.
        """
        yield np.empty(0, np.int64), np.empty((0, 1), self.dtype)
        for numbers, halves in self._halves.all():
            parts = halves.reshape(-1, grain)
            which = np.flatnonzero(parts.any(axis=1))
            number, inner = np.divmod(which, self._half // grain)
            yield numbers[number] * self._half + inner * grain, parts[which]
        yield from self._elements.all()


class _Section:
    """Some blocks of a target, by numbers of their own."""

    def __init__(self, whole: SparseSums, first: int) -> None:
        self._whole = whole
        self._first = first

    def section(self, first: int, stop: int) -> _Section:
        return _Section(self._whole, self._first + first)

    def scatter(self, blocks: Indices, rows: Array, columns: slice) -> None:
        self._whole.scatter(blocks + self._first, rows, columns)

    def fill(self, blocks: Indices | npt.NDArray[np.bool_], value: float) -> None:
        numbers = np.flatnonzero(blocks) if blocks.dtype == np.bool_ else blocks
        self._whole.fill(numbers + self._first, value)


class _Slabs:
    """Numbered rows that become more and more: no reallocation, and 1 MB of slack at most."""

    def __init__(self, width: int, dtype: np.dtype[Any]) -> None:
        self._width = width
        self._dtype = dtype
        self._capacity = max(1, _SLAB_BYTES // (width * dtype.itemsize))
        self._slabs: list[tuple[Indices, Array]] = []
        self._used = self._capacity

    def add(self, numbers: Indices, rows: Array) -> None:
        while len(numbers):
            if self._used == self._capacity:
                empty = np.empty((self._capacity, self._width), self._dtype)
                self._slabs.append((np.empty(self._capacity, np.int64), empty))
                self._used = 0
            room = min(self._capacity - self._used, len(numbers))
            here = slice(self._used, self._used + room)
            self._slabs[-1][0][here] = numbers[:room]
            self._slabs[-1][1][here] = rows[:room]
            self._used += room
            numbers, rows = numbers[room:], rows[room:]

    def all(self) -> Iterator[tuple[Indices, Array]]:
        for index, (numbers, rows) in enumerate(self._slabs):
            end = self._used if index == len(self._slabs) - 1 else self._capacity
            yield numbers[:end], rows[:end]


def _ranges(starts: Indices, lengths: Indices) -> Indices:
    """Return start, start + 1, … of each, `length` numbers, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shifts: Indices = np.repeat(starts - (ends - lengths), lengths)
    return shifts + np.arange(total)


def _distinct(ascending: Indices) -> Indices:
    return _distinct_neighbours(ascending)[0]


def _distinct_neighbours(numbers: Indices) -> tuple[Indices, Indices]:
    """Return numbers without those equal to the one before, and how often each came in a row."""
    if not len(numbers):
        return numbers, numbers
    at = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    return numbers[at], np.diff(at, append=len(numbers))
