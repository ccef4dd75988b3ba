# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel in one direction of a DeviceMesh, data parallel in the other.

p4reduce-lab exec -n 8 -- python examples/pytorch_grid.py --tensor 4

PyTorch's own `parallelize_module` cuts the layers, and FSDP2 (`fully_shard`) averages gradients
over the ranks that have the same part. At the end the weights equal those of one process.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

STEPS, SAMPLES = 20, 64


def network() -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4))


def train(model: nn.Module, inputs: torch.Tensor) -> float:
    """Steps of SGD with momentum; returns the last loss of these samples."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wanted = torch.sin(inputs[:, :4] + inputs[:, 4:8])
    loss = 0.0
    for _ in range(STEPS):
        optimiser.zero_grad()
        error = nn.functional.mse_loss(model(inputs), wanted)
        error.backward()
        optimiser.step()
        loss = error.item()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tensor", type=int, default=4, help="ranks that share a layer")
    width = parser.parse_args().tensor
    size = int(os.environ["WORLD_SIZE"])
    if width < 1 or size % width or SAMPLES * width % size:
        raise SystemExit(f"--tensor {width} does not divide {size} ranks evenly")
    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    mesh = init_device_mesh("cpu", (size // width, width), mesh_dim_names=("data", "tensor"))
    model = network()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    torch.manual_seed(7)
    inputs = torch.randn(SAMPLES, 20)
    loss = train(model, inputs.chunk(size // width)[mesh.get_local_rank("data")])
    alone = network()
    train(alone, inputs)
    apart = 0.0
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        whole = one.full_tensor() if isinstance(one, DTensor) else one
        apart = max(apart, (whole - other).abs().max().item())
    print(f"rank {dist.get_rank()}: loss {loss:.4f}, {apart:.1e} from one process")
    dist.destroy_process_group()
    if apart > 1e-5:
        raise SystemExit("the weights are not those of one process")


if __name__ == "__main__":
    main()
