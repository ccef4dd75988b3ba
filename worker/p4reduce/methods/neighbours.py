# SPDX-License-Identifier: Apache-2.0
"""Ranks on a chain, and two ways for a rank to get the sum of its neighbours' models.

Every second rank of the chain is a *head*, the others are *tails*. A rank's neighbours are of the
other kind. What a rank needs of them is one sum, which the switch can compute:

- `Groups`: each rank and its neighbours are a group of three (two at the ends of the chain), made
  by `split`. The neighbours add, the rank between them keeps. Another chain takes other groups,
  which is a call of the controller.
- `OneJob`: all ranks sum a matrix that has a row for each rank of one kind, and each rank adds its
  model to the rows of its two neighbours. Another chain is only another order of the rows, but
  all rows come down to every rank.

Models travel as multiples of a unit, in two lanes of 32 bits per number. So a sum is rounded once,
to float64: what a rank believes of its neighbours is what they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Array, Comm

HEADS, TAILS = 0, 1
_BITS = 30  # of a lane: two ranks' sum fits
_SLOTS = 8  # of a group: as many blocks are under way at once, 1,024 numbers of a model
_ROOM = 20  # bits above the greatest number that is known beforehand


class Grid:
    """Multiples of a power of two, which are added without rounding.

    Args:
        exponent: of the largest number that is known in advance; models may grow to 2^20 times
            as much. The unit is 2^-40 of it.

    Attributes:
        left: whether a model had a number outside of the range. The rank then continues with
            clipped numbers until all ranks know.
    """

    def __init__(self, exponent: int) -> None:
        self._unit = exponent + _ROOM - 2 * _BITS
        self.left = False

    def round(self, model: Array) -> Array:
        """Return the nearest multiples within the range."""
        whole = np.rint(np.ldexp(model, -self._unit))
        most = 2.0 ** (2 * _BITS) - 2.0**_BITS  # its upper digits, twice, fit into a lane
        if not (np.abs(whole) <= most).all():
            self.left = True
            whole = np.clip(np.nan_to_num(whole, nan=0.0), -most, most)
        return np.asarray(np.ldexp(whole, self._unit), np.float64)

    def pack(self, model: Array) -> npt.NDArray[np.int32]:
        """Return upper and lower digits of multiples of the unit, shape (2, d)."""
        whole = np.rint(np.ldexp(model, -self._unit)).astype(np.int64)
        upper = whole >> _BITS
        return np.stack([upper, whole - (upper << _BITS)]).astype(np.int32)

    def unpack(self, digits: npt.NDArray[np.int32]) -> Array:
        """Return the sum that digits represent, shape (d,)."""
        upper, lower = digits.astype(np.int64)
        return np.asarray(np.ldexp(((upper << _BITS) + lower).astype(np.float64), self._unit))


class Neighbours(Protocol):
    """How models travel along a chain."""

    def link(self, chain: Sequence[int]) -> None:
        """Form a chain of the ranks in this order. All ranks call it with the same order."""
        ...

    def send(self, kind: int, model: Array) -> Array | None:
        """Send the models of one kind of ranks. All ranks call it.

        Args:
            kind: the sending kind, HEADS or TAILS.
            model: shape (d,), on the grid; on ranks of the other kind only the shape counts.

        Returns:
            On ranks of the other kind, the sum of their neighbours' models; else None.
        """
        ...

    def close(self) -> None:
        """Leave the groups, if there are any."""
        ...


class ChainPlace:
    """A rank's place on a chain.

    Attributes:
        at: its position, from 0.
        kind: HEADS or TAILS.
        degree: the number of its neighbours.
    """

    def __init__(self, chain: Sequence[int], rank: int) -> None:
        self.at = list(chain).index(rank)
        self.kind = self.at % 2
        self.degree = (self.at > 0) + (self.at < len(chain) - 1)


class OneJob:
    """All ranks in one sum, with a row per receiving rank.

    Args:
        comm: the ranks.
        grid: of the models.
    """

    def __init__(self, comm: Comm, grid: Grid) -> None:
        self._comm, self._grid = comm, grid
        self._place = ChainPlace(range(comm.size), comm.rank)

    def link(self, chain: Sequence[int]) -> None:
        """Form another chain. Nothing is sent."""
        self._place = ChainPlace(chain, self._comm.rank)

    def send(self, kind: int, model: Array) -> Array | None:
        """Add this rank's model to its neighbours' rows, or return its own row."""
        other = 1 - kind
        rows = np.zeros(((self._comm.size + kind) // 2, 2, len(model)), np.int32)
        if self._place.kind == kind:
            for at in (self._place.at - 1, self._place.at + 1):
                if 0 <= at < self._comm.size:
                    rows[at // 2] += self._grid.pack(model)
        sums = self._comm.allreduce(rows, name=f"neighbours/{'tails' if other else 'heads'}")
        return None if self._place.kind == kind else self._grid.unpack(sums[self._place.at // 2])

    def close(self) -> None:
        """Do nothing: there are no groups."""


class Groups:
    """A group per rank, with its neighbours.

    Args:
        comm: the ranks. On a switch each group uses 8 slots.
        grid: of the models.
    """

    def __init__(self, comm: Comm, grid: Grid) -> None:
        self._comm, self._grid = comm, grid
        self._groups: dict[int, Comm] = {}
        self._place = ChainPlace(range(comm.size), comm.rank)

    def link(self, chain: Sequence[int]) -> None:
        """Form another chain by three calls of `split`, because a rank is in up to three groups."""
        self.close()
        self._place = ChainPlace(chain, self._comm.rank)
        for third in range(3):
            # The groups around places third, third + 3, … have no rank in common. This rank is in
            # the one around `around`: that of at - 1, at, at + 1 which is `third` modulo 3.
            around = self._place.at + (third - self._place.at + 1) % 3 - 1
            there = 0 <= around < self._comm.size and self._comm.size > 1
            group = self._comm.split(around if there else None, self._place.at, slots=_SLOTS)
            if group is not None:
                self._groups[around] = group

    def send(self, kind: int, model: Array) -> Array | None:
        """Add in the groups of this rank's neighbours, or return the sum of its own group."""
        if self._place.kind != kind:
            own = self._groups.get(self._place.at)
            nothing = np.zeros((2, len(model)), np.int32)
            return self._grid.unpack(nothing if own is None else self._sum(own, nothing))
        # Every second group of the other kind at once, so that no rank waits for a row of others.
        for around in sorted((self._place.at - 1, self._place.at + 1), key=lambda at: at // 2 % 2):
            if around in self._groups:
                self._sum(self._groups[around], self._grid.pack(model))
        return None

    def _sum(self, group: Comm, mine: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.asarray(group.allreduce(mine, name="neighbours/group"), np.int32)

    def close(self) -> None:
        """Leave the groups."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
