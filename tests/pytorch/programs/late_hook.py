# SPDX-License-Identifier: Apache-2.0
"""A rank of three steps with `deadline_hook`: the last rank is late in the second one."""

import json

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE = 5
LONG, SHORT = 100.0, 0.05  # seconds


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(nn.Linear(SIZE, 1, bias=False))
    state = hooks.HookState(deadline=LONG, at_least=size - 1)
    model.register_comm_hook(state, hooks.deadline_hook)
    gradients = []
    for step in range(3):
        model.zero_grad()
        state.deadline = SHORT if step == 1 else LONG
        loss = model(torch.full((1, SIZE), float(10**step * (rank + 1)))).sum()
        if step == 1 and rank == size - 1:
            store.wait([f"over{other}" for other in range(size - 1)])
        loss.backward()
        if step == 1:
            store.set(f"over{rank}", "")
        gradients.append(model.module.weight.grad[0].tolist())
    print(json.dumps({"gradients": gradients, "kept": len(state.kept)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
