# SPDX-License-Identifier: Apache-2.0
"""DDP that accumulates gradients (`no_sync`), beside the mean that each rank computes by itself.

Prints a record for each way: how far the gradients are apart after two steps.
"""

import contextlib
import json
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PASSES = 3


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 7))


def inputs(rank: int, step: int, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + number)
    return torch.randn(16, 30, generator=generator)


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in ("none", "allreduce_hook", "int16_hook"):
        model, alone = DistributedDataParallel(network(), bucket_cap_mb=0.01), network()
        if name != "none":
            model.register_comm_hook(hooks.HookState(), getattr(hooks, name))
        apart = 0.0
        for step in range(2):
            model.zero_grad()
            alone.zero_grad()
            for number in range(PASSES):
                last = number == PASSES - 1
                held: Any = contextlib.nullcontext() if last else model.no_sync()
                with held:
                    model(inputs(rank, step, number)).square().mean().backward()
                for other in range(size):
                    loss = alone(inputs(other, step, number)).square().mean() / size
                    loss.backward()
            for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                apart = max(apart, (ours.grad - theirs.grad).abs().max().item())
        print(json.dumps({"way": name, "apart": apart}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
