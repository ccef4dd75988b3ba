# SPDX-License-Identifier: Apache-2.0
"""Lab 6: the sum of a rank's neighbours on a chain, by one all-reduce of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np


class Mine:
    """How models travel along a chain. `p4reduce.methods.gadmm` calls it."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.link(list(range(comm.size)))

    def link(self, chain: list[int]) -> None:
        """Take a chain: the ranks in the order in which they stand on it."""
        self.at = list(chain).index(self.comm.rank)  # this rank's place, from 0
        self.kind = self.at % 2  # 0: head, 1: tail

    def send(self, kind: int, model: Any) -> Any:
        """All ranks call this; those of a kind send their models, of shape (d,).

        Returns the sum of the neighbours' models to ranks of the other kind, else None.
        """
        # TODO: the matrix needs a row for each rank that receives, and what is sent goes to two
        # rows, or to one at the ends of the chain.
        everything = model if self.kind == kind else np.zeros_like(model)
        total = self.comm.allreduce(everything)
        return None if self.kind == kind else total

    def close(self) -> None:
        """Nothing is open."""
