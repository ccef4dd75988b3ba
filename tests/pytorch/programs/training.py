# SPDX-License-Identifier: Apache-2.0
"""A rank that trains until something is wrong, and then tells what.

Arguments: "backend" (DDP on p4reduce), "hook" (DDP on Gloo, with our hook on a communicator of its
own), "delegated" (all_reduce with MAX, by the inner Gloo) or "queued" (many collectives under way).
Prints "step N" as it goes on, and a line of JSON with the error's type and text.
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


def main() -> None:
    mode = sys.argv[1]
    dist.init_process_group("gloo" if mode == "hook" else "p4reduce", timeout=timedelta(seconds=60))
    try:
        train(mode) if mode in ("backend", "hook") else reduce(mode)
    except Exception as error:
        record = {"error": type(error).__name__, "runtime": isinstance(error, RuntimeError)}
        print(json.dumps({**record, "text": str(error), "rank": os.environ["RANK"]}), flush=True)
    dist.destroy_process_group()
    print("destroyed", flush=True)
    faulthandler.dump_traceback_later(30, repeat=True)  # where it is, should it not end


if __name__ == "__main__":
    main()
