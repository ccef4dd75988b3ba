# SPDX-License-Identifier: Apache-2.0
"""A training loop that goes on without a lost rank, and lets it in again when it comes back.

In one shell ``p4reduce-lab up``; in others, with what it prints in the environment, each rank:

RANK=0 WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=29500 python examples/pytorch_reform.py

Kill a rank, and start `python examples/pytorch_reform.py --back`: it takes part again.
"""

from __future__ import annotations

import argparse
import time

import p4reduce.torch
import torch
import torch.distributed as dist
from torch import nn


def shared(step: int, network: nn.Module) -> int:
    """Gives all ranks rank 0's step and weights."""
    state = [step, network.state_dict()]
    dist.broadcast_object_list(state)
    network.load_state_dict(state[1])
    return int(state[0])


def train(options: argparse.Namespace) -> nn.Module:
    """Trains with the ranks that are there."""
    torch.manual_seed(0)
    network = nn.Linear(20, 1)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    step, group = shared(0, network), dist.group.WORLD
    while step < options.steps:
        rank, size = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(64, 20, generator=generator)
        loss = (network(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        try:
            for one in network.parameters():
                dist.all_reduce(one.grad, op=dist.ReduceOp.AVG)
        except dist.DistBackendError as error:
            print(f"rank {rank} of {size}: {error}", flush=True)
            group = p4reduce.torch.reform()
            step = shared(step, network)
            continue
        optimiser.step()
        step += 1
        print(f"rank {rank} of {size}: step {step}, loss {loss.item():.4f}", flush=True)
        time.sleep(options.pause)
        before, group = group, p4reduce.torch.reform() if step % 10 == 0 else group
        if group is not before:  # somebody came back
            step = shared(step, network)
    return network


def main() -> None:
    """Begins, or comes back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--back", action="store_true", help="come back to ranks that are training")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step")
    options = parser.parse_args()
    if options.back:
        p4reduce.torch.reform()
    else:
        dist.init_process_group("p4reduce")
    network = train(options)
    weights = sum(one.double().sum().item() for one in network.parameters())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: weights {weights!r}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
