# SPDX-License-Identifier: Apache-2.0
"""A rank of a tree: two steps of `hierarchical_hook`, and the gradients that came of it."""

import json

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE, DENSITY = 1000, 0.1


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.Linear(SIZE, 1, bias=False))
    state = hooks.HookState(density=DENSITY)
    model.register_comm_hook(state, hooks.hierarchical_hook)
    given = torch.arange(size * SIZE).reshape(size, SIZE).mul(7919).remainder(size * SIZE) - 2000
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(given[rank].float()[None]).sum().backward()
        gradients.append(model.module.weight.grad[0].tolist())
    leaf = state.channel.comm.leaf
    print(json.dumps({"rank": rank, "leaf": leaf, "gradients": gradients}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
