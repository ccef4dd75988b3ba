# SPDX-License-Identifier: Apache-2.0
"""The roll: what the ranks tell each other before a sum, as one row of int32 each.

All rows are added up by one all-reduce in which each rank fills its own row alone. So all ranks
read the same table, and whatever follows from it alone is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.errors import MismatchError
from p4reduce.tensors.precision import PRECISIONS, WRAP
from p4reduce.tensors.stream import DTYPES
from p4reduce.wire.rank_sets import describe_ranks

ABSENT, PRESENT, LEAVING, FULL = 1, 2, 3, 4
"""States of a rank: it has not called the sum, it has, it will call no more, or it is so many sums
behind that the others have to wait for it. 0 is never sent."""

TICK = 1e-6
"""Seconds; times in a row are multiples of it, 2,147 s at most."""

MOST_DIMENSIONS = 8
"""Of arrays whose shapes fit into a row."""

WORDS = 9 + MOST_DIMENSIONS
"""Words of a row."""

_MOST = 2**31 - 1
_DTYPES = tuple(sorted(np.dtype(kind).name for kind in DTYPES))
_LANES: tuple[str | None, ...] = (None, *sorted(PRECISIONS), WRAP)


@dataclass(frozen=True)
class Row:
    """What one rank says.

    Attributes:
        state: `ABSENT`, `PRESENT`, `LEAVING` or `FULL`.
        waited: for how long its call has been waiting, in ticks.
        came: how long after the last sum it called, in ticks.
        deadline: after which wait of the first caller it would go without the others, in ticks.
        at_least: with how many ranks.
        dtype, lanes: what it has called it with, as numbers of this module's tables.
        digest: a fingerprint of what else has to be the same.
        shape: of the array.
    """

    state: int = ABSENT
    waited: int = 0
    came: int = 0
    deadline: int = 0
    at_least: int = 0
    dtype: int = 0
    lanes: int = 0
    digest: int = 0
    shape: tuple[int, ...] = ()

    def pack(self) -> list[int]:
        """Return the words of the row."""
        rest = [0] * (MOST_DIMENSIONS - len(self.shape))
        return [
            *(self.state, self.waited, self.came, self.deadline, self.at_least),
            *(self.dtype, self.lanes, self.digest, len(self.shape), *self.shape, *rest),
        ]

    @classmethod
    def unpack(cls, words: Sequence[int]) -> Row:
        """Return the row of some words."""
        state, waited, came, deadline, at_least, dtype, lanes, digest, dimensions, *shape = words
        return cls(
            *(state, waited, came, deadline, at_least, dtype, lanes, digest),
            shape=tuple(shape[:dimensions]),
        )

    @property
    def kind(self) -> np.dtype[np.generic]:
        """The array's dtype."""
        return dtype_named(self.dtype)

    @property
    def precision(self) -> str | None:
        """The lanes, as `allreduce` calls them."""
        return _LANES[self.lanes]


def ticks(seconds: float) -> int:
    """Return a time as it stands in a row."""
    return int(min(max(seconds, 0.0) / TICK, _MOST))


def dtype_number(dtype: np.dtype[np.generic]) -> int:
    """Return the number of a dtype that can be reduced."""
    return _DTYPES.index(dtype.name)


def dtype_named(number: int) -> np.dtype[np.generic]:
    """Return the dtype of a number."""
    dtype: np.dtype[np.generic] = np.dtype(_DTYPES[number])
    return dtype


def lanes_number(precision: str | None) -> int:
    """Return the number of a precision that there is."""
    return _LANES.index(precision)


def table_with(row: Row, seat: int, seats: int) -> npt.NDArray[np.int32]:
    """Return a rank's part of the table; shape (seats, WORDS)."""
    table = np.zeros((seats, WORDS), np.int32)
    table[seat] = row.pack()
    return table


class Roll:
    """What all ranks said before a sum.

    Args:
        table: the sum of all ranks' parts; shape (seats, WORDS).
        alive: the seats that took part.

    Attributes:
        rows: of the seats that took part.
    """

    def __init__(self, table: npt.NDArray[np.int32], alive: Sequence[int]) -> None:
        self.rows = {seat: Row.unpack(table[seat].tolist()) for seat in alive}

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks that have called the sum."""
        return self._in_state(PRESENT)

    @property
    def leaving(self) -> tuple[int, ...]:
        """The ranks that call no more sums."""
        return self._in_state(LEAVING)

    @property
    def full(self) -> tuple[int, ...]:
        """The ranks that the others have to wait for."""
        return self._in_state(FULL)

    @property
    def not_present(self) -> tuple[int, ...]:
        """The ranks that have not called it."""
        return tuple(seat for seat, row in self.rows.items() if row.state != PRESENT)

    @property
    def longest_wait(self) -> int:
        """For how many ticks the first of those present has waited."""
        return max((self.rows[seat].waited for seat in self.present), default=0)

    def call(self) -> Row:
        """Return what those present have called, of which there is one at least.

        Raises:
            MismatchError: they have called different things; the same on all ranks.
        """
        present = self.present
        called = [(row.dtype, row.lanes, row.shape, row.digest) for row in self._rows(present)]
        usual = max(called, key=called.count)
        others = tuple(seat for seat, what in zip(present, called, strict=True) if what != usual)
        if others:
            raise MismatchError(
                f"the ranks called different sums: {describe_ranks(others)} another one than "
                f"{describe_ranks([seat for seat in present if seat not in others])}; dtype, "
                "shape, op, name, precision, deadline and at_least have to be the same",
                ranks=others,
            )
        return self.rows[present[called.index(usual)]]

    def _rows(self, seats: Sequence[int]) -> list[Row]:
        return [self.rows[seat] for seat in seats]

    def _in_state(self, state: int) -> tuple[int, ...]:
        return tuple(seat for seat, row in self.rows.items() if row.state == state)
