# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 (``fully_shard``) on the switch: each rank holds a part of each parameter.

p4reduce-lab exec -n 4 -- python examples/pytorch_fsdp2.py

The parameters are gathered (all_gather_into_tensor) and the gradients summed in parts
(reduce_scatter_tensor) by the switch. At the end the model is saved and loaded as a distributed
checkpoint, of which each rank writes its own part.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 40


def main() -> None:
    """Trains a transformer encoder to sort."""
    dist.init_process_group("p4reduce")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(16, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 16))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            fully_shard(module)
    fully_shard(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)

    torch.manual_seed(rank)  # from here on each rank draws data of its own
    for step in range(STEPS):
        numbers = torch.randint(16, (16, 8))
        wanted = numbers.sort(dim=1).values
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(numbers).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")

    directory = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(directory)
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=directory[0])
    checkpoint.load(state, checkpoint_id=directory[0])
    print(f"rank {rank}: final loss {loss.item():.4f}, checkpoint in {directory[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
