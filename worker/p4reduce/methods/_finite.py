# SPDX-License-Identifier: Apache-2.0
"""Sums of numbers that may have run away: all ranks notice it at the same sum.

A rank that stopped by itself would leave the others waiting. A NaN of one rank makes the sum NaN on
all ranks, so a rank whose numbers do not fit into lanes sends NaN.
"""

from __future__ import annotations

import numpy as np

from p4reduce.methods._communicator import Array, Comm

MOST = 2.0**120  # the lanes' floats end at 2^128
FAR = 2.0**50  # of a model that is the same on all ranks, so that each can tell by itself


def held(mine: Array) -> Array:
    """Return numbers as they are if lanes can hold them and their sum, else NaN."""
    return mine if bool((np.abs(mine) < MOST).all()) else np.full_like(mine, np.nan)


def finite_sum(
    comm: Comm, mine: Array, name: str, otherwise: str, *, precision: str | None = None
) -> Array:
    """Return the sum over all ranks of float64 numbers, which has to be finite.

    Args:
        comm: the ranks.
        mine: of any shape, the same on all ranks.
        name: of the collective.
        otherwise: what to say if a rank's numbers have run away.
        precision: of the lanes.

    Raises:
        ValueError: on all ranks, with that text.
    """
    total = np.asarray(comm.allreduce(held(mine), name=name, precision=precision), np.float64)
    if not np.isfinite(total).all():
        raise ValueError(otherwise)
    return total
