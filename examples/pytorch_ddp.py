# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel with its gradients summed by the switch. Run it with

p4reduce-lab exec -n 4 -- python examples/pytorch_ddp.py

Only the backend's name differs from other scripts. Nothing of p4reduce is imported: torch finds the
installed backend. Needs ``pip install 'p4reduce[torch]'``. See docs/pytorch.md.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def main() -> None:
    """Trains a small network on data that each rank has its own part of."""
    dist.init_process_group("p4reduce")  # from the variables that the launcher sets
    rank = dist.get_rank()

    torch.manual_seed(rank)  # DDP broadcasts rank 0's parameters, so seeds may differ
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(256, 20)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    for step in range(STEPS):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")

    # Are the weights the same on all ranks, bit for bit?
    weights = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, weights)
    same = all(torch.equal(one, weights) for one in everybody)
    print(f"rank {rank}: final loss {loss.item():.4f}, same weights: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
