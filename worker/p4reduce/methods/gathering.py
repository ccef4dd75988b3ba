# SPDX-License-Identifier: Apache-2.0
"""Gathers each rank's data on all ranks, by a sum in which the others have zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm


def gather(
    comm: Comm, mine: npt.NDArray[Any], name: str, counts: Sequence[int] | None = None
) -> npt.NDArray[Any]:
    """Return the rows of all ranks, in the order of ranks, bit for bit.

    Bits travel as int32 numbers, whose sums with zeros are exact; blocks of zeros are not sent.

    Args:
        comm: the ranks.
        mine: this rank's rows, of at least one dimension and of a dtype of 4 or 8 bytes.
        name: of the collective.
        counts: how many rows each rank has; None: as many as this one.
    """
    rows = [len(mine)] * comm.size if counts is None else list(counts)
    words = np.ascontiguousarray(mine).reshape(-1).view(np.int32)
    width = int(np.prod(mine.shape[1:])) * mine.itemsize // 4
    first = sum(rows[: comm.rank]) * width
    padded = np.zeros(sum(rows) * width, np.int32)
    padded[first : first + len(words)] = words
    everything = np.ascontiguousarray(comm.allreduce(padded, name=name))
    return everything.view(mine.dtype).reshape(sum(rows), *mine.shape[1:])
