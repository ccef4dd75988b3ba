# SPDX-License-Identifier: Apache-2.0
"""A rank of `bench.planner.home`, which torchrun starts on each host: sums buckets, and times them.

Gloo's ring and the switches take turns in one job. A step's buckets are
all under way at once, as DistributedDataParallel has them, and nothing is computed.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import in_turns, timed

LANES = {"float32": "int32", "int16": "int16", "int8": "int8", "int8 with feedback": "int8"}


def sum_buckets(
    elements: int, bucket: int, turns: int, ways: list[str]
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each way's turns, and the CPU seconds of all hosts."""
    import torch
    import torch.distributed as dist

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
            handles = [dist.all_reduce(one, group=ring, async_op=True) for one in buckets]
        else:
            residuals = kept if way.endswith("feedback") else [None] * len(kept)
            handles = [
                comm.allreduce_async(one.numpy(), precision=LANES[way], residual=residual)
                for one, residual in zip(buckets, residuals, strict=True)
            ]
        for handle in handles:
            handle.wait()

    def turn(way: str) -> tuple[float, float]:
        gradients.normal_()
        dist.barrier()
        before = _processor_seconds()
        took = timed(partial(step, way))
        busy = _processor_seconds() - before
        times = torch.tensor([took], dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        used = torch.tensor([busy], dtype=torch.float64)
        dist.all_reduce(used, group=ring)
        return times.item(), used.item()

    # The first turn learns round trips and shares.
    found = in_turns({way: partial(turn, way) for way in ways}, turns, warm_up=1)
    dist.destroy_process_group()
    return found


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
