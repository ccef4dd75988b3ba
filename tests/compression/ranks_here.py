# SPDX-License-Identifier: Apache-2.0
"""All ranks of a compressed all-reduce in this process, with no switch between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.compression import Compressed, Compressor
from p4reduce.wire.calls import MEAN, SUM, Operation

Array = npt.NDArray[Any]


def plain_sum(arrays: list[Array], lanes: int) -> Array:
    """As the switch does it: a block with NaN or infinity in it on any rank is NaN."""
    total = np.sum(np.array(arrays, dtype=np.float64), axis=0).astype(arrays[0].dtype)
    for start in range(0, total.size, lanes):
        if not np.isfinite(total[start : start + lanes]).all():
            total[start : start + lanes] = np.nan
    return total


def exchange(ranks: list[Compressor], gradients: list[Array]) -> tuple[list[Compressed], Array]:
    """One step of all ranks in this process."""
    pairs = list(zip(ranks, gradients, strict=True))
    wanted = [one.propose("w", gradient) for one, gradient in pairs]
    proposed = [one for one in wanted if one is not None]
    assert len(proposed) in (0, len(ranks))
    assert len({one.shape for one in proposed}) <= 1, "the ranks are out of step"
    agreed = plain_sum(proposed, 256) if proposed else None
    sent = [one.compress("w", gradient, agreed) for one, gradient in pairs]
    total = plain_sum([one.values for one in sent], ranks[0].lanes)
    for one in ranks:
        one.decompress("w", total)
    return sent, total


class EqualRanks:
    """A communicator of ranks that are all given the same; it notes what it is called with."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.names: list[str | None] = []
        self.precisions: list[str | None] = []

    def allreduce(
        self,
        array: Array,
        op: Operation = SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Array:
        self.names.append(name)
        self.precisions.append(precision)
        assert (seed is None) == (precision is None)
        with np.errstate(over="ignore"):
            return np.array(array) if op is MEAN else array * array.dtype.type(self.size)
