# SPDX-License-Identifier: Apache-2.0
"""A rank that trains until something is wrong, and then tells what.

Arguments: "backend" (DDP on p4reduce), "hook" (DDP on Gloo, with our hook on a communicator of its
own), "delegated" (all_reduce with MAX, by the inner Gloo), "queued" (many collectives under way),
"groups" (process groups are made and destroyed) or "init" (the default group is, again and again).
Prints "step N" as it continues, and a line of JSON with the error's type and text.
"""

import faulthandler
import json
import os
import sys
from datetime import timedelta

import p4reduce
import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 100_000


def train(mode: str) -> None:
    network = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 1))
    model = DistributedDataParallel(network, bucket_cap_mb=0.005)
    if mode == "hook":
        model.register_comm_hook(hooks.HookState(p4reduce.init()), hooks.int16_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimiser.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimiser.step()
        print(f"step {step}", flush=True)


def reduce(mode: str) -> None:
    for step in range(STEPS):
        if mode == "delegated":
            dist.all_reduce(torch.ones(10), dist.ReduceOp.MAX)
        else:
            works = [dist.all_reduce(torch.ones(10_000), async_op=True) for _ in range(8)]
            futures = [work.get_future() for work in works]
            torch.futures.collect_all(futures).wait()
        print(f"step {step}", flush=True)


def make_groups() -> None:
    for step in range(STEPS):
        group = dist.new_group()
        dist.all_reduce(torch.ones(10), group=group)
        dist.destroy_process_group(group)
        print(f"step {step}", flush=True)


def init_again() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, size, rank == 0)
    for step in range(STEPS):
        own = dist.PrefixStore(str(step), store)
        dist.init_process_group(
            "p4reduce", store=own, rank=rank, world_size=size, timeout=timedelta(seconds=20)
        )
        dist.all_reduce(torch.ones(10))
        dist.destroy_process_group()
        print(f"step {step}", flush=True)


def begin(mode: str) -> None:
    if mode == "init":
        init_again()
        return
    dist.init_process_group("gloo" if mode == "hook" else "p4reduce", timeout=timedelta(seconds=60))
    if mode == "groups":
        make_groups()
    elif mode in ("backend", "hook"):
        train(mode)
    else:
        reduce(mode)


def main() -> None:
    faulthandler.enable()  # a test ends what hangs by SIGABRT, to see where it is
    mode = sys.argv[1]
    try:
        begin(mode)
    except Exception as error:
        record = {"error": type(error).__name__, "runtime": isinstance(error, RuntimeError)}
        print(json.dumps({**record, "text": str(error), "rank": os.environ["RANK"]}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    print("destroyed", flush=True)


if __name__ == "__main__":
    main()
