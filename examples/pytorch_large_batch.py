# SPDX-License-Identifier: Apache-2.0
"""A batch 16 times as large: the rate as before, by the linear and square-root rules, and LARS.

p4reduce-lab exec -n 4 -- python examples/pytorch_large_batch.py

All ranks together have the batch, so the figures do not depend on how many there are.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from p4reduce.torch.large_batch import LARS, linear_rate, sqrt_rate, warm_up
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEST = 360  # images that are not trained on
BASE_BATCH, LARGE_BATCH = 16, 256  # over all ranks
RATE = 0.03  # that is good for the base
EPOCHS = 20
CASES = ("base", "unscaled", "linear", "sqrt", "lars")


def accuracy(case: str, seed: int) -> tuple[int, float]:
    """Train; return the steps, and the share of the test images that are recognised."""
    rank, size = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(1))
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(digits.target)[order]
    train = len(images) - TEST

    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    batch = BASE_BATCH if case == "base" else LARGE_BATCH
    steps = EPOCHS * (train // batch)
    linear = linear_rate(RATE, batch, BASE_BATCH)
    optimizer: torch.optim.Optimizer
    if case == "lars":
        optimizer = LARS(model.parameters(), linear, momentum=0.0, trust=0.1)
    else:
        rate = {"linear": linear, "sqrt": sqrt_rate(RATE, batch, BASE_BATCH)}.get(case, RATE)
        optimizer = torch.optim.SGD(model.parameters(), rate)
    schedule = warm_up(optimizer, steps // 10, RATE)

    shuffle = torch.Generator().manual_seed(seed + 50)  # the same on all ranks
    for _ in range(EPOCHS):
        epoch = TEST + torch.randperm(train, generator=shuffle)
        for first in range(0, train - batch + 1, batch):
            chosen = torch.tensor_split(epoch[first : first + batch], size)[rank]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            schedule.step()
    right = net(images[:TEST]).argmax(1) == labels[:TEST]
    return steps, float(right.float().mean())


def main() -> None:
    """Trains each case with some seeds, and prints the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each case")
    parser.add_argument("--only", choices=CASES, action="append", help="these cases alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    if BASE_BATCH % dist.get_world_size():
        raise SystemExit(f"{BASE_BATCH} samples are to be split evenly: start 1, 2, 4, 8 or 16")
    for case in options.only or CASES:
        runs = [accuracy(case, seed) for seed in range(options.seeds)]
        if dist.get_rank() == 0:
            mean = 100 * sum(right for _, right in runs) / len(runs)
            print(f"{case:<9} {runs[0][0]:5d} steps  accuracy {mean:.1f} %", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
