# SPDX-License-Identifier: Apache-2.0
"""A script for Horovod, with its import changed: scikit-learn's digits on all ranks.

p4reduce-lab exec -n 4 -- python examples/horovod_digits.py
"""

from __future__ import annotations

import p4reduce.horovod as hvd  # it was: import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 12
TEST = 360  # images that are not trained on


def main() -> None:
    """Trains, and prints how many of the other images are recognised."""
    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    data = TensorDataset(images[:-TEST], labels[:-TEST])
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    batches = DataLoader(data, batch_size=32, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch, wanted in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), wanted).backward()
            optimizer.step()

    mine = slice(len(images) - TEST + hvd.rank(), None, hvd.size())
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    right = hvd.allreduce(right, op=hvd.Sum)
    if hvd.rank() == 0:
        print(f"accuracy {100 * int(right) / TEST:.1f} % of {hvd.size()} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
