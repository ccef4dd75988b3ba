# SPDX-License-Identifier: Apache-2.0
"""Sums that are exact, so that they do not depend on how samples are spread over ranks.

The switch adds integers of 32 bits exactly and reports overflow. Wider integers travel as *limbs*:
digits in a base so small that the sum of all ranks' digits fits into a lane. The limbs of high
order are zeros for small numbers, and blocks of zeros are never sent. Floats become integers by a
power of two that all ranks agree on. The reproducible sum of Demmel and Nguyen ("Fast reproducible
floating-point summation", ARITH 2013) rounds each addend to a common unit, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.gathering import gather

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BITS = 62  # that a sum may have, besides its sign


def sum_integers(comm: Comm, mine: Integers, name: str) -> Integers:
    """Return the sum over all ranks of integers, exactly.

    Args:
        comm: the ranks.
        mine: int64, of any shape; the sum of the magnitudes over all ranks must be below 2^62.
        name: of the collective.

    Returns:
        int64, of the same shape, the same on all ranks.
    """
    bits = 31 - max(comm.size - 1, 1).bit_length()
    count = -(-_BITS // bits)
    magnitudes = np.abs(mine)
    mask = (1 << bits) - 1
    limbs = np.stack([(magnitudes >> (bits * place)) & mask for place in range(count)])
    signed = (limbs * np.sign(mine)).astype(np.int32)
    sums = np.asarray(comm.allreduce(signed, name=name)).astype(np.int64)
    return np.asarray(sum(sums[place] << (bits * place) for place in range(count)), np.int64)


def sum_floats(comm: Comm, mine: Floats, name: str) -> Floats:
    """Return the sum over all ranks of floats.

    The result depends neither on the order of arrival nor on the order of ranks. With n ranks each
    addend is rounded to a unit below n * 2^-60 of the largest magnitude, and the sum to float64.

    Args:
        comm: the ranks.
        mine: float64, of any shape.
        name: of the collectives, of which there are two.

    Raises:
        ValueError: on all ranks, if one has numbers that are not finite.
    """
    unit = _unit(_greatest(comm, np.abs(mine).max(initial=0.0, keepdims=True), name), comm.size)
    unit = unit.reshape(())
    whole = np.rint(np.ldexp(mine, -unit)).astype(np.int64)
    return np.ldexp(sum_integers(comm, whole, name).astype(np.float64), unit)


class Fixed:
    """Numbers in units that all ranks share: integers, whose sums are exact.

    Their sums have the same bits, whichever rank has which sample.

    Attributes:
        exponents: of the units, which are powers of two; int32, of the shape of a sample.
        integers: this rank's numbers in these units, int64, of the shape given.
    """

    def __init__(self, comm: Comm, mine: Floats, samples: int, name: str) -> None:
        """Agree on a unit for each feature.

        Args:
            comm: the ranks.
            mine: float64, shape (samples, ...).
            samples: how many all ranks have together.
            name: of the collective.

        Raises:
            ValueError: on all ranks, if one has numbers that are not finite.
        """
        self.exponents = unit_exponents(comm, mine, samples, name)
        self.integers = np.rint(np.ldexp(mine, -self.exponents)).astype(np.int64)

    def floats(self, sums: Integers) -> Floats:
        """Return sums of these integers as numbers."""
        return np.ldexp(sums.astype(np.float64), self.exponents)


def unit_exponents(comm: Comm, mine: Floats, samples: int, name: str) -> npt.NDArray[np.int32]:
    """Agree on the smallest unit for each feature in which sums of all samples fit 62 bits.

    Arguments and errors are those of `Fixed`. Returns the exponents of the units, powers of two.
    """
    greatest = _greatest(comm, np.abs(mine).max(axis=0, initial=0.0), name)
    return _unit(greatest, samples)


def _greatest(comm: Comm, mine: Floats, name: str) -> Floats:
    """Return the greatest that any rank has at each place, which has to be finite."""
    of_all = gather(comm, mine[None], f"{name}: greatest")
    finite = np.isfinite(of_all).reshape(comm.size, -1).all(axis=1)
    if not finite.all():
        rank = int(np.flatnonzero(~finite)[0])
        raise ValueError(
            f"{name}: rank {rank} has sums that are not finite: its numbers are too large"
        )
    return np.asarray(of_all.max(axis=0))


def _unit(greatest: Floats, addends: int) -> npt.NDArray[np.int32]:
    """Return exponents of the smallest units in which sums of `addends` numbers fit 62 bits."""
    _, exponents = np.frexp(greatest)
    return np.asarray(exponents + (max(addends - 1, 0).bit_length() - _BITS), np.int32)
