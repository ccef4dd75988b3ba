# SPDX-License-Identifier: Apache-2.0
"""The negotiation: what the ranks tell each other before a sum, in one row of int32 each.

One all-reduce adds up all rows, and each rank fills only its own. So all ranks read the same table,
and draw the same conclusions.
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

MOST = 2**31 - 1
"""The largest number in a row. As a deadline: there is none."""

_DTYPES = tuple(sorted(np.dtype(kind).name for kind in DTYPES))
_LANES: tuple[str | None, ...] = (None, *sorted(PRECISIONS), WRAP)


@dataclass(frozen=True)
class NegotiationRow:
    """The entry of one rank.

    Attributes:
        state: `ABSENT`, `PRESENT`, `LEAVING` or `FULL`.
        waited: how long its call has been waiting, in ticks.
        came: how long after the last sum it called, in ticks.
        deadline: its call's deadline, from the first rank's call, in ticks.
        at_least: the least number of ranks in the sum.
        dtype, lanes: of its call, as numbers of this module's tables.
        digest: a fingerprint of everything else that must be equal.
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
            self.state,
            self.waited,
            self.came,
            self.deadline,
            self.at_least,
            self.dtype,
            self.lanes,
            self.digest,
            len(self.shape),
            *self.shape,
            *rest,
        ]

    @classmethod
    def unpack(cls, words: Sequence[int]) -> NegotiationRow:
        """Return the row in some words."""
        state, waited, came, deadline, at_least, dtype, lanes, digest, dimensions, *shape = words
        return cls(
            state,
            waited,
            came,
            deadline,
            at_least,
            dtype,
            lanes,
            digest,
            shape=tuple(shape[:dimensions]),
        )

    @property
    def kind(self) -> np.dtype[np.generic]:
        """The dtype of the ranks' arrays."""
        return dtype_named(self.dtype)

    @property
    def summed_as(self) -> np.dtype[np.generic]:
        """The dtype of the sum, see `wide`."""
        return wide(self.kind)

    @property
    def precision(self) -> str | None:
        """The lanes, as `allreduce` names them."""
        return _LANES[self.lanes]


def ticks(seconds: float) -> int:
    """Return seconds as ticks, as a row holds them."""
    return int(min(max(seconds, 0.0) / TICK, MOST))


def wide(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype that an array is summed in: float32 for float16.

    Means divide a sum, and one of float16 can be infinite where the mean is not.
    """
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def dtype_number(dtype: np.dtype[np.generic]) -> int:
    """Return the number of a reducible dtype."""
    return _DTYPES.index(dtype.name)


def dtype_named(number: int) -> np.dtype[np.generic]:
    """Return the dtype of a number."""
    dtype: np.dtype[np.generic] = np.dtype(_DTYPES[number])
    return dtype


def lanes_number(precision: str | None) -> int:
    """Return the number of a precision."""
    return _LANES.index(precision)


def table_with(row: NegotiationRow, rank: int, size: int) -> npt.NDArray[np.int32]:
    """Return a rank's part of the table; shape (size, WORDS)."""
    table = np.zeros((size, WORDS), np.int32)
    table[rank] = row.pack()
    return table


class Negotiation:
    """What all ranks said before a sum.

    Args:
        table: the sum of all ranks' parts; shape (size, WORDS).
        alive: the ranks that took part.

    Attributes:
        rows: of the ranks that took part.
    """

    def __init__(self, table: npt.NDArray[np.int32], alive: Sequence[int]) -> None:
        self.rows = {rank: NegotiationRow.unpack(table[rank].tolist()) for rank in alive}

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
        """The ranks that the others must wait for."""
        return self._in_state(FULL)

    @property
    def not_present(self) -> tuple[int, ...]:
        """The ranks that have not called the sum."""
        return tuple(rank for rank, row in self.rows.items() if row.state != PRESENT)

    @property
    def longest_wait(self) -> int:
        """How many ticks the first present rank has waited."""
        return max((self.rows[rank].waited for rank in self.present), default=0)

    def call(self) -> NegotiationRow:
        """Return the call of the present ranks, of which there must be one.

        Raises:
            MismatchError: they have called different things; the same on all ranks.
        """
        present = self.present
        called = [(row.dtype, row.lanes, row.shape, row.digest) for row in self._rows(present)]
        usual = max(called, key=called.count)
        others = tuple(rank for rank, what in zip(present, called, strict=True) if what != usual)
        if others:
            raise MismatchError(
                f"the ranks called different sums: {describe_ranks(others)} another one than "
                f"{describe_ranks([rank for rank in present if rank not in others])}; dtype, "
                "shape, op, name, precision, deadline and at_least must be the same",
                ranks=others,
            )
        return self.rows[present[called.index(usual)]]

    def _rows(self, ranks: Sequence[int]) -> list[NegotiationRow]:
        return [self.rows[rank] for rank in ranks]

    def _in_state(self, state: int) -> tuple[int, ...]:
        return tuple(rank for rank, row in self.rows.items() if row.state == state)
