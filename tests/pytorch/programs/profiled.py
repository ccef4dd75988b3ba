# SPDX-License-Identifier: Apache-2.0
"""A rank whose calls torch's profiler sees. Prints the names that begin with ours, as JSON."""

import json

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    dist.init_process_group("p4reduce")
    model = DistributedDataParallel(nn.Linear(8, 8))
    model.register_comm_hook(hooks.HookState(), hooks.int8_hook)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
        model(torch.ones(2, 8)).sum().backward()
    names = {event.key for event in profiler.key_averages()}
    print(json.dumps({"names": sorted(name for name in names if name.startswith("p4reduce"))}))
    dist.destroy_process_group()


main()
