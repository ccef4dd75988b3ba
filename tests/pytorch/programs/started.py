# SPDX-License-Identifier: Apache-2.0
"""Trains as torch's own tutorial does, and says by which network; nothing of it is set.

Arguments: a directory, where each rank writes its pid. It then sums until "end" is there, and
writes how it ended: "through", or the error. Without one, it ends after a few steps.
"""

import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    begun = time.monotonic()
    patience = 120 if len(sys.argv) > 1 else 240
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=patience))
    took = time.monotonic() - begun
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(200, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        inputs = torch.full((4, 200), float(rank + 1))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    half = dist.new_group([0, 1])
    one = torch.ones(3)
    if rank < 2:
        dist.all_reduce(one, group=half)

    import p4reduce.torch

    statistics = p4reduce.torch.statistics()
    comm = dist.group.WORLD.channel.comm
    said = {
        "rank": rank,
        "size": dist.get_world_size(),
        "weights": sum(parameter.sum().item() for parameter in model.parameters()),
        "pair": one[0].item(),
        "by_switch": {name: tally.calls for name, tally in statistics.switch.items()},
        "shares": [share.share for share in comm.switches],
        "seconds": took,
        "scapy": "scapy" in sys.modules,
        "collects garbage": gc.isenabled(),
    }
    print(json.dumps(said), flush=True)
    if len(sys.argv) > 1:
        sum_until_the_end(Path(sys.argv[1]), rank)
    dist.destroy_process_group()


def sum_until_the_end(here: Path, rank: int) -> None:
    told(here, f"{rank}.pid", str(os.getpid()))
    going, turns = True, 0
    while going:
        ones = torch.ones(100_000)
        dist.all_reduce(ones)
        assert (ones == dist.get_world_size()).all(), ones
        turns += 1
        if turns % 10 == 0:
            end = torch.tensor([float((here / "end").exists())])
            dist.all_reduce(end)
            going = not end.item()
    print(f"rank {rank}: through after {turns} sums", flush=True)


def told(here: Path, name: str, text: str) -> None:
    """Write a file, which is never seen in part."""
    (here / f"{name}.new").write_text(text)
    (here / f"{name}.new").replace(here / name)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        ended = Path(sys.argv[1]), f"{os.environ['RANK']}.ended"
        try:
            main()
        except BaseException as error:
            told(*ended, f"{type(error).__name__}: {error}")
            raise
        told(*ended, "through")
