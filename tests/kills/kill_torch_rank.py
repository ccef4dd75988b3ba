# SPDX-License-Identifier: Apache-2.0
"""A torch rank of the kill campaign: as kill_rank.py, by the calls of `torch.distributed`.

When a rank is lost, torch has no going on: it ends with the error, which has to name that rank.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WRONG_MOST = 5


def given(step: int, rank: int) -> torch.Tensor:
    """Whole numbers, so that their sums are exact."""
    draw = torch.Generator().manual_seed(step * 64 + rank)
    return torch.randint(-1000, 1000, (12_000,), generator=draw).float()


def one_step(step: int) -> list[str]:
    """Return what was wrong."""
    rank, size = dist.get_rank(), dist.get_world_size()
    of_all = [given(step, one) for one in range(size)]
    total = torch.stack(of_all).sum(0)
    summed, copied, largest = of_all[rank].clone(), of_all[rank].clone(), of_all[rank].clone()
    root = step % size
    parts, own = [torch.empty_like(summed) for _ in range(size)], torch.empty(12_000 // size)
    works = [
        dist.all_reduce(summed, async_op=True),
        dist.broadcast(copied, root, async_op=True),
        dist.all_gather(parts, of_all[rank], async_op=True),
        dist.reduce_scatter_tensor(own, of_all[rank], async_op=True),
    ]
    if step % 4 == 0:
        works.append(dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True))  # by Gloo
    futures = [work.get_future() for work in works[:2]]
    for work in works:
        assert work is not None
        work.wait()
    torch.futures.wait_all(futures)
    pairs = {
        "all_reduce": (summed, total),
        "broadcast": (copied, of_all[root]),
        "all_gather": (torch.cat(parts), torch.cat(of_all)),
        "reduce_scatter": (own, total.chunk(size)[rank]),
    }
    if step % 4 == 0:
        pairs["MAX"] = (largest, torch.stack(of_all).max(0).values)
    return [f"step {step}, {name}" for name, (one, right) in pairs.items() if not one.equal(right)]


def main() -> None:
    end, timeout = Path(sys.argv[1]) / "end", float(sys.argv[2])
    record: dict[str, Any] = {"error": None, "text": "", "lost": [], "recoveries": 0}
    step, longest = 0, (0.0, 0)
    wrong: list[str] = []
    try:
        dist.init_process_group("p4reduce", timeout=timedelta(seconds=timeout))
        record["rank"] = dist.get_rank()
        while True:
            began = time.monotonic()
            ends = torch.tensor(float(dist.get_rank() == 0 and end.exists()))
            dist.all_reduce(ends)
            if ends.item():
                break
            wrong += one_step(step)
            longest = max(longest, (time.monotonic() - began, step))
            print(f"step {step}", flush=True)
            step += 1
        group: Any = dist.group.WORLD
        record["recoveries"] = group.channel.comm.stats.recoveries
    except RuntimeError as error:
        record |= {"error": type(error).__name__, "text": str(error)}
    if dist.is_initialized():
        dist.destroy_process_group()
    record |= {"steps": step, "longest": longest, "wrong": wrong[:WRONG_MOST]}
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
