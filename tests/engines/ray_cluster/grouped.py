# SPDX-License-Identifier: Apache-2.0
"""Actors in groups of `ray.util.collective` on the backend "P4REDUCE": for test_ray_collective.py.

python grouped.py sums|missing
python grouped.py killed RANK
python grouped.py service DIRECTORY

With "service" the ranks sum until DIRECTORY/end is there; rank 0 writes DIRECTORY/begun.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce.ray
import ray
import ray.util.collective as col
from ray.util.collective.types import ReduceOp

SIZE = 3


@ray.remote(num_cpus=0)
class Member:
    def __init__(self, rank: int, timeout: float) -> None:
        self.rank = rank
        p4reduce.ray.register(timeout, lease=45.0)
        p4reduce.ray.register(timeout, lease=45.0)  # once more is no error

    def begin(self, group: str) -> None:
        col.init_collective_group(SIZE, self.rank, "P4REDUCE", group)

    def begin_without_all(self) -> str:
        try:
            self.begin("lonely")
        except p4reduce.P4ReduceTimeoutError as error:
            return f"{error.missing} {error}"
        return "nobody"

    def end(self, group: str) -> None:
        col.destroy_collective_group(group)

    def second_group(self, first: str) -> bool:
        """Whether sums are right in two groups at once, and in the first when the other ended."""
        self.begin("second")
        arrays = [np.ones(100, np.float32) for _ in range(3)]
        col.allreduce(arrays[0], "second")
        col.allreduce(arrays[1], first)
        self.end("second")
        col.allreduce(arrays[2], first)
        return all((array == SIZE).all() for array in arrays)

    def sums(self, group: str) -> dict[str, int]:
        import torch

        total = SIZE * (SIZE + 1) // 2
        mine = self.rank + 1
        for dtype in (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32):
            array = np.full((7, 100), mine, dtype)
            col.allreduce(array, group)
            assert (array == total).all(), dtype
        every_other = np.full(20, mine, np.float32)
        col.allreduce(every_other[::2], group)
        assert every_other.tolist() == [total, mine] * 10
        tensor = torch.full((5,), float(mine))
        col.allreduce(tensor, group)
        assert tensor.tolist() == [total] * 5
        col.reduce(tensor, 1, group)
        assert tensor.tolist() == [total * SIZE if self.rank == 1 else total] * 5
        named = np.full(4, self.rank, np.int64)
        col.broadcast(named, 2, group)
        assert named.tolist() == [2] * 4
        got = [np.zeros((2, 2)) for _ in range(SIZE)]
        col.allgather(got, np.full((2, 2), float(mine)), group)
        assert [one.tolist() for one in got] == [[[r + 1.0] * 2] * 2 for r in range(SIZE)]
        part = np.zeros(6, np.float32)
        col.reducescatter(part, [np.full(6, mine * r, np.float32) for r in range(SIZE)], group)
        assert part.tolist() == [total * self.rank] * 6
        col.barrier(group)
        # What Gloo does.
        most = np.full(3, mine, np.float32)
        col.allreduce(most, group, ReduceOp.MAX)
        assert most.tolist() == [SIZE] * 3
        longs = np.full(3, mine, np.int64)
        col.allreduce(longs, group)
        assert longs.tolist() == [total] * 3
        if self.rank == 0:
            col.send(torch.full((2,), 7.0), 1, group)
        elif self.rank == 1:
            word = torch.zeros(2)
            col.recv(word, 0, group)
            assert word.tolist() == [7.0] * 2
        return dict(col.get_group_handle(group).calls)

    def sum_until(self, group: str, victim: int) -> str:
        array = np.ones(1000, np.float32)
        for step in range(1_000_000):
            if self.rank == victim and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                col.allreduce(array, group)
            except p4reduce.P4ReduceError as error:
                return f"{type(error).__name__}: {error}"
        return ""

    def sum_until_told(self, group: str, directory: Path) -> None:
        going = True
        while going:
            array = np.ones(1000, np.float32)
            col.allreduce(array, group)
            assert array.tolist() == [SIZE] * 1000
            end = np.array([self.rank == 0 and (directory / "end").exists()], np.float32)
            col.allreduce(end, group)
            going = not end[0]
            if self.rank == 0:
                (directory / "begun").touch()


def main() -> None:
    what = sys.argv[1]
    p4reduce.ray.register()
    ray.init()
    ranks = range(SIZE - 1 if what == "missing" else SIZE)
    timeout = 30.0 if what == "missing" else 120.0
    members: list[Any] = [Member.remote(rank, timeout) for rank in ranks]
    if what == "missing":
        for word in ray.get([member.begin_without_all.remote() for member in members]):
            print("MISSING", word, flush=True)
        return
    for group in ("first", "first"):  # the name is free again
        ray.get([member.begin.remote(group) for member in members])
        if what == "killed":
            victim = int(sys.argv[2])
            rest = [rank for rank in range(SIZE) if rank != victim]
            asked = [member.sum_until.remote(group, victim) for member in members]
            for rank in rest:
                print(f"RANK {rank} {ray.get(asked[rank])}", flush=True)
            ray.get([members[rank].end.remote(group) for rank in rest])
            return
        if what == "service":
            there = Path(sys.argv[2])
            ray.get([member.sum_until_told.remote(group, there) for member in members])
            print("SUMMED", flush=True)
            ray.get([member.end.remote(group) for member in members])
            return
        calls = ray.get([member.sums.remote(group) for member in members])
        print("CALLS", calls[0], flush=True)
        print("SECOND", ray.get([one.second_group.remote(group) for one in members]), flush=True)
        ray.get([member.end.remote(group) for member in members])
    # A group that the driver declares.
    col.create_collective_group(members, SIZE, list(ranks), "P4REDUCE", "declared")
    ray.get([member.sums.remote("declared") for member in members])
    print("DECLARED", flush=True)
    ray.get([member.end.remote("declared") for member in members])


if __name__ == "__main__":
    main()
