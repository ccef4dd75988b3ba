# SPDX-License-Identifier: Apache-2.0
"""Sums of numbers that may diverge: all ranks notice it at the same sum.

If one rank stopped, the others would wait for it. So a rank whose numbers do not fit into lanes
sends NaN, which makes the sum NaN on all ranks.
"""

from __future__ import annotations

import numpy as np

from p4reduce.methods._communicator import Array, Comm

MOST = 2.0**120  # the lanes' floats end at 2^128
FAR = 2.0**50  # of a model that is the same on all ranks, so that each can check by itself


def held(mine: Array) -> Array:
    """Return numbers unchanged if lanes can hold them and their sum, else NaN."""
    return mine if bool((np.abs(mine) < MOST).all()) else np.full_like(mine, np.nan)


def finite_sum(
    comm: Comm, mine: Array, name: str, otherwise: str, *, precision: str | None = None
) -> Array:
    """Return the sum over all ranks of float64 numbers, which must be finite.

    Args:
        comm: the ranks.
        mine: an array of any shape, equal on all ranks.
        name: of the collective.
        otherwise: the message if a rank's numbers diverge.
        precision: of the lanes.

    Raises:
        ValueError: on all ranks, with that text.
    """
    total = np.asarray(comm.allreduce(held(mine), name=name, precision=precision), np.float64)
    if not np.isfinite(total).all():
        raise ValueError(otherwise)
    return total
