# SPDX-License-Identifier: Apache-2.0
"""A communication hook: gradients in lanes of 8 bits, a quarter of the bytes, by the switch.

p4reduce-lab exec -n 4 -- python examples/pytorch_hook.py

All else stays with the backend that the script has, here Gloo: the hook alone has a communicator on
the switch. On the backend "p4reduce" it would be ``hooks.HookState()``, and no communicator.
"""

from __future__ import annotations

import p4reduce
import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def main() -> None:
    """Trains a small network on data that each rank has its own part of."""
    dist.init_process_group("gloo")
    with p4reduce.init() as comm:
        torch.manual_seed(comm.rank)
        model = DistributedDataParallel(
            nn.Sequential(nn.Linear(20, 256), nn.Tanh(), nn.Linear(256, 1))
        )
        state = hooks.HookState(comm, error_feedback=True)
        model.register_comm_hook(state, hooks.int8_hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(256, 20)
        targets = torch.sin(inputs.sum(dim=1, keepdim=True))
        for step in range(STEPS):
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimiser.step()
            if comm.rank == 0 and step % 20 == 0:
                print(f"step {step:3d}  loss {loss.item():.4f}")
        print(
            f"rank {comm.rank}: final loss {loss.item():.4f}, {comm.stats.bytes_sent:,} bytes sent"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
