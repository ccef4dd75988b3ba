# SPDX-License-Identifier: Apache-2.0
"""Two steps of DDP with the compressor of the first argument; prints the mean gradients.

Its package is where the second argument says.
"""

import json
import sys

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    sys.path.insert(0, sys.argv[2])  # forked ranks do not read PYTHONPATH
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 4, bias=False))  # four blocks
    state = hooks.HookState(compressor=sys.argv[1])
    model.register_comm_hook(state, hooks.compressed_hook)
    inputs = torch.ones(1, 256) * (rank + 1)
    for _ in range(2):
        model.zero_grad()
        model(inputs).sum().backward()
        rows = model.module.weight.grad.mean(dim=1)
        print(json.dumps({"size": size, "rows": rows.tolist()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
