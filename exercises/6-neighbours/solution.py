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
        receivers = [at for at in range(self.comm.size) if at % 2 != kind]
        rows = np.zeros((len(receivers), len(model)))
        if self.kind == kind:
            for at in (self.at - 1, self.at + 1):
                if 0 <= at < self.comm.size:
                    rows[at // 2] = model
        total = self.comm.allreduce(rows)
        return None if self.kind == kind else total[self.at // 2]

    def close(self) -> None:
        """Nothing is open."""
