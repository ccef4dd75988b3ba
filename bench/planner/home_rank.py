# SPDX-License-Identifier: Apache-2.0
"""A rank of `bench.planner.home`, which torchrun starts on each host: sums buckets, and times them.

Gloo's ring and the switches take turns in one job. Rank 0 writes what came. A step's buckets are
all under way at once, as DistributedDataParallel has them, and nothing is computed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WAYS = {
    "gloo": None,
    "float32": "int32",
    "int16": "int16",
    "int8": "int8",
    "int8 with feedback": "int8",
}


def main() -> None:
    elements, bucket, turns = (int(text) for text in sys.argv[1:4])
    out, wanted = Path(sys.argv[4]), sys.argv[5:]
    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    ring = dist.new_group(backend="gloo")
    channel: Any = dist.group.WORLD.channel
    comm = channel.comm
    gradients = torch.randn(elements, generator=torch.Generator().manual_seed(dist.get_rank()))
    buckets = list(gradients.split(bucket))
    kept = [torch.zeros_like(one).numpy() for one in buckets]

    def step(way: str) -> None:
        if way == "gloo":
            works = [dist.all_reduce(one, group=ring, async_op=True) for one in buckets]
            for work in works:
                assert work is not None
                work.wait()
            return
        handles = [
            comm.allreduce_async(
                one.numpy(),
                precision=WAYS[way],
                residual=residual if way.endswith("feedback") else None,
            )
            for one, residual in zip(buckets, kept, strict=True)
        ]
        for handle in handles:
            handle.wait()

    found: dict[str, list[tuple[float, float]]] = {way: [] for way in wanted}
    for turn in range(turns + 1):
        for way in wanted:
            gradients.normal_()
            dist.barrier()
            before, began = _processor_seconds(), time.perf_counter()
            step(way)
            took = time.perf_counter() - began
            busy = _processor_seconds() - before
            times = torch.tensor([took], dtype=torch.float64)
            dist.all_reduce(times, dist.ReduceOp.MAX)
            used = torch.tensor([busy], dtype=torch.float64)
            dist.all_reduce(used, group=ring)
            if turn:  # the first one learns round trips and shares
                found[way].append((times.item(), used.item()))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def _processor_seconds() -> float:
    """Of all processes of this host, which is a network namespace."""
    here = Path("/proc/self/ns/net").readlink()
    ticks = sum(_ticks(process, here) for process in Path("/proc").glob("[0-9]*"))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(process: Path, host: Path) -> int:
    try:
        if (process / "ns/net").readlink() != host:
            return 0
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
