# SPDX-License-Identifier: Apache-2.0
"""A rank of the kill campaign: it compares every sum with what it has to be, bit for bit.

Arguments: a directory, and seconds that a collective may take. A rank puts in whole numbers, so
that sums are exact. It computes each itself, from the step and the ranks that there are. It goes on
until there is a file "end" in the directory; when a rank is lost, with those that are left. It
prints "step N" as it continues, and at last a line of JSON: how it ended, how long the longest step
took and which it was, and what was wrong.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce

WRONG_MOST = 5  # that are told
FORMING = 3  # tries to form the job again, each of as many seconds as a collective may take

Arrays = list[npt.NDArray[Any]]


def given(step: int, first_rank: int) -> Arrays:
    """What a rank puts in: floats with blocks of zeros, integers, a few float64, and votes."""
    draw = np.random.default_rng((step, first_rank))
    floats = draw.integers(-1000, 1000, 20_000).astype(np.float32)
    floats[3000:9000] = 0
    return [
        floats,
        draw.integers(-(10**6), 10**6, 700).astype(np.int32),
        draw.integers(-1000, 1000, 90).astype(np.float64),
        draw.integers(-1, 2, 5000).astype(np.int8),
    ]


def few_of(array: npt.NDArray[Any]) -> p4reduce.SparseElements:
    """Every 97th element of an array, at places that differ with its first one."""
    indices = np.arange(int(array[0]) % 97, len(array), 97)
    return p4reduce.SparseElements(indices, array[indices], len(array))


class Rank:
    """What continues from one life of the job to the next one.

    Args:
        directory: where "end" will be.
        timeout: seconds, of a collective.
    """

    def __init__(self, directory: Path, timeout: float) -> None:
        self._end = directory / "end"
        self._timeout = timeout
        self.first_rank = -1
        self.members: list[int] = []  # by their first ranks, in the order of their present ones
        self.step = 0
        self.lost: list[int] = []  # by their first ranks
        self.told: list[str] = []  # what was said of that
        self.longest = 0.0, 0  # seconds, step
        self.wrong: list[str] = []
        self.recoveries = 0

    def run(self) -> None:
        """Sum until the end, or raise what ends this rank alone."""
        comm = p4reduce.init(timeout=self._timeout)
        self.first_rank = comm.rank
        self.members = list(range(comm.size))
        while (error := self._live(comm)) is not None:
            lost = [self.members[rank] for rank in error.ranks]
            self.lost += lost
            self.members = [one for one in self.members if one not in lost]
            self.told.append(str(error))
            comm = self._form_anew(comm)
        comm.close()

    def _live(self, comm: p4reduce.Communicator) -> p4reduce.WorkerLostError | None:
        """Sum in one life of the job, until the end, or until other ranks are lost."""
        try:
            self.members = self._meet(comm)
            self._reduce(comm, self.members)
        except p4reduce.WorkerLostError as error:
            if comm.rank in error.ranks:
                raise
            return error
        finally:
            self.recoveries += comm.stats.recoveries
        return None

    def _form_anew(self, comm: p4reduce.Communicator) -> p4reduce.Communicator:
        """Again where a switch or a controller is away as well, as the error allows."""
        for _ in range(FORMING - 1):
            with contextlib.suppress(p4reduce.P4ReduceTimeoutError):
                return comm.reform()
        return comm.reform()

    def _meet(self, comm: p4reduce.Communicator) -> list[int]:
        """Return the first ranks of all that there are, and go to the step of the latest."""
        told = comm.allgather(np.array([[self.first_rank, self.step]]))
        self.step = int(told[:, 1].max()) + 1
        return [int(rank) for rank in told[:, 0]]

    def _reduce(self, comm: p4reduce.Communicator, members: list[int]) -> None:
        while True:
            began = time.monotonic()
            ends = comm.allreduce(np.int32(comm.rank == 0 and self._end.exists()))
            if ends:
                return
            self._one_step(comm, members)
            took = time.monotonic() - began
            self.longest = max(self.longest, (took, self.step))
            print(f"step {self.step}", flush=True)
            self.step += 1

    def _one_step(self, comm: p4reduce.Communicator, members: list[int]) -> None:
        of_all = [given(self.step, rank) for rank in members]
        mine, root = of_all[comm.rank], self.step % comm.size
        floats, integers, few, votes = (one.copy() for one in mine)
        handles = [
            comm.allreduce_async(floats, out=floats),
            comm.allreduce_async(integers),
            comm.allreduce_async(few),
            comm.broadcast_async(mine[1].copy(), root=root),
            comm.allgather_async(mine[2], [len(few)] * comm.size),
            comm.reduce_scatter_async(mine[1]),
            comm.allreduce_async(votes, precision="int4"),
            comm.allreduce_sparse_async(few_of(mine[1]), dense=True),
        ]
        if self.step % 3 == 0:
            comm.barrier()
        found = [handle.wait() for handle in handles]
        sums = [sum(arrays[1:], arrays[0]) for arrays in zip(*of_all, strict=True)]
        parts = np.array_split(sums[1], comm.size)
        wanted = [*sums[:3], of_all[root][1], np.concatenate([one[2] for one in of_all])]
        wanted += [parts[comm.rank], sums[3]]
        wanted.append(sum(few_of(arrays[1]).to_dense() for arrays in of_all))
        for number, (one, right) in enumerate(zip(found, wanted, strict=True)):
            if one.dtype != right.dtype or one.tobytes() != right.tobytes():
                self.wrong.append(f"step {self.step}, collective {number}")
        floats[:] = 0  # what a caller may do


def main() -> None:
    rank = Rank(Path(sys.argv[1]), float(sys.argv[2]))
    record: dict[str, Any] = {"error": None, "text": ""}
    try:
        rank.run()
    except p4reduce.P4ReduceError as error:
        record = {"error": type(error).__name__, "text": str(error)}
    record |= {
        "rank": rank.first_rank,
        "steps": rank.step,
        "lost": rank.lost,
        "told": rank.told,
        "longest": rank.longest,
        "recoveries": rank.recoveries,
        "wrong": rank.wrong[:WRONG_MOST],
    }
    print(json.dumps(record), flush=True)
