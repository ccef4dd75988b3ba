# SPDX-License-Identifier: Apache-2.0
"""A classifier of digits by Ray Train, whose gradients the switch sums. Run it with

python examples/ray_digits.py

On a laptop Ray starts by itself; with RAY_ADDRESS it is that cluster. One argument makes it
p4reduce's: torch_config=P4ReduceConfig(). Beside it one process learns from the same batches.
Needs ``pip install 'p4reduce[ray,torch]' scikit-learn``. See docs/ray.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import torch
from p4reduce.ray import P4ReduceConfig, report
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

EPOCHS, BATCH, TESTED = 12, 64, 400


def data() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    images = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    return images, torch.tensor(digits.target[order])


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def batches(epoch: int, samples: int, rank: int, size: int) -> Iterator[torch.Tensor]:
    """This rank's part of each batch."""
    order = torch.from_numpy(np.random.default_rng(epoch).permutation(samples))
    for first in range(0, samples - BATCH + 1, BATCH):
        yield order[first + rank : first + BATCH : size]


def learn(model: nn.Module, optimiser: Any, epoch: int, rank: int, size: int) -> float:
    """Train for an epoch, and return the accuracy on images that are not trained on."""
    images, labels = data()
    for batch in batches(epoch, len(labels) - TESTED, rank, size):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        right = model(images[-TESTED:]).argmax(dim=1) == labels[-TESTED:]
    return float(right.float().mean())


def optimiser_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def train() -> None:
    """What each worker runs; after a fault it continues from the last checkpoint."""
    context = ray.train.get_context()
    model = prepare_model(network())
    optimiser = optimiser_of(model)
    first = 0
    if kept := ray.train.get_checkpoint():
        with kept.as_directory() as directory:
            state = torch.load(Path(directory) / "state.pt")
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["epoch"] + 1
    for epoch in range(first, EPOCHS):
        rank, size = context.get_world_rank(), context.get_world_size()
        accuracy = learn(model, optimiser, epoch, rank, size)
        with tempfile.TemporaryDirectory() as directory:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
            torch.save({**state, "epoch": epoch}, Path(directory) / "state.pt")
            mine = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
            report({"epoch": epoch, "accuracy": accuracy}, checkpoint=mine)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--storage", default=tempfile.gettempdir() + "/ray_digits")
    arguments = parser.parse_args()
    ray.init()
    # Workers share what cores there are, so that a laptop of two runs four.
    share = min(1.0, ray.cluster_resources()["CPU"] / arguments.workers)
    trainer = TorchTrainer(
        train,
        torch_config=P4ReduceConfig(),
        scaling_config=ray.train.ScalingConfig(
            num_workers=arguments.workers, resources_per_worker={"CPU": share}
        ),
        run_config=ray.train.RunConfig(
            storage_path=arguments.storage,
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    )
    metrics = trainer.fit().metrics
    assert metrics is not None
    sent, seconds = metrics["p4reduce/bytes_sent"], metrics["p4reduce/step_seconds"]
    print(f"accuracy with {arguments.workers} workers: {metrics['accuracy']:.4f}")
    print(f"rank 0 sent {sent / 1e6:.2f} MB in the last epoch, in {seconds:.2f} s")
    alone = network()
    optimiser = optimiser_of(alone)
    accuracies = [learn(alone, optimiser, epoch, 0, 1) for epoch in range(EPOCHS)]
    print(f"accuracy of one process:   {accuracies[-1]:.4f}")


if __name__ == "__main__":
    main()
