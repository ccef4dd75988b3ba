# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: the ranks' models are averaged every few steps, and no gradient travels.

p4reduce-lab exec -n 4 -- python examples/pytorch_local_sgd.py --every 16
p4reduce-lab exec -n 4 -- python examples/pytorch_local_sgd.py --every 16 --sorted --diloco
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from p4reduce.methods.local_sgd import DILOCO_MOMENTUM, DILOCO_RATE
from p4reduce.torch import LocalSGD, statistics
from sklearn.datasets import load_digits
from torch import nn

TEST = 360  # images that are not trained on
BATCH = 32  # of each rank


def main() -> None:
    """Trains a network on scikit-learn's digits, of which each rank has a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=16, help="steps between two averages")
    parser.add_argument("--steps", type=int, default=640, help="of each rank")
    parser.add_argument("--sorted", action="store_true", help="parts have few of the digits each")
    outer = f"outer rate {DILOCO_RATE}, momentum {DILOCO_MOMENTUM}"
    parser.add_argument("--diloco", action="store_true", help=outer)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(1))
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(digits.target)[order]
    rows = torch.arange(TEST, len(images))
    if options.sorted:
        rows = rows[labels[rows].argsort(stable=True)]
        rows = torch.tensor_split(rows, size)[rank]
    else:
        rows = rows[rank::size]

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    outer_rate, outer_momentum = (DILOCO_RATE, DILOCO_MOMENTUM) if options.diloco else (1.0, 0.0)
    optimizer = LocalSGD(
        torch.optim.SGD(model.parameters(), lr=0.1),
        options.every,
        outer_rate=outer_rate,
        outer_momentum=outer_momentum,
    )
    draw = torch.Generator().manual_seed(rank)
    for _ in range(options.steps):
        chosen = rows[torch.randint(len(rows), (BATCH,), generator=draw)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    if options.steps % options.every:
        optimizer.average()

    right = (model(images[:TEST]).argmax(1) == labels[:TEST]).float().mean()
    if rank == 0:
        sent = statistics().switch["LocalSGD"].bytes
        print(
            f"every {options.every} steps, {optimizer.averages} averages: "
            f"accuracy {100 * float(right):.1f} %, {sent:,} bytes sent by rank 0"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
