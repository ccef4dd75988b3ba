# SPDX-License-Identifier: Apache-2.0
"""Hooks of narrow lanes whose buckets are a fake accelerator's: errors, and bytes copied.

Arguments: a seed, and how many ranks have one. Rank 0 prints a record for each hook and dtype.
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from fake_accelerator import FakeAccelerator, install
from p4reduce.torch import hooks
from p4reduce.torch.hooks import entry, on_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COUNT = 100_001  # the last block is not full
STEPS = 3
PIECE = 40_960  # elements, so that a bucket goes in three pieces


def main() -> None:
    rank = int(os.environ["RANK"])
    fake = FakeAccelerator(int(sys.argv[1]) * 1000 + rank, kernels=False, longest=0.002)
    if rank < int(sys.argv[2]):
        install(lambda tensor: tensor.numel() > 1000, fake)
    entry.PART = on_device.PART = PIECE
    dist.init_process_group("p4reduce")
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(int(sys.argv[1]))
    given = torch.randn(size, COUNT, generator=generator, dtype=torch.float64)
    given[:, 5000:20_000] = 0
    for name in ("int16_hook", "int8_hook", "int4_hook"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            print_one(fake, name, dtype, given, rank)
    print_one(fake, "allreduce_hook", torch.float32, given, rank)
    for dtype in (torch.float32, torch.bfloat16):
        print_topk(fake, dtype, given, rank)
    dist.destroy_process_group()


def print_one(
    fake: FakeAccelerator, name: str, dtype: torch.dtype, given: torch.Tensor, rank: int
) -> None:
    state = hooks.HookState(error_feedback=True)
    model = DistributedDataParallel(nn.Linear(COUNT, 1, bias=False, dtype=dtype))
    model.register_comm_hook(state, getattr(hooks, name))
    gradient: Any = torch.zeros(COUNT, dtype=torch.float64)
    fake.lent = 0
    for _ in range(STEPS):
        model.zero_grad()
        model(given[rank][None].to(dtype)).sum().backward()
        gradient += model.module.weight.grad[0].double()
    record = {
        "hook": name,
        "dtype": str(dtype),
        "off": (gradient / STEPS - given.mean(dim=0)).abs().max().item(),
        "zeros": gradient[6144:18_432].abs().max().item(),
        "copied": fake.lent / STEPS / COUNT,
    }
    if rank == 0:
        print(json.dumps(record), flush=True)


def print_topk(fake: FakeAccelerator, dtype: torch.dtype, given: torch.Tensor, rank: int) -> None:
    """All ranks select a quarter of the blocks; after some steps each block has had its turn."""
    state = hooks.HookState(density=0.25)
    model = DistributedDataParallel(nn.Linear(COUNT, 1, bias=False, dtype=dtype))
    model.register_comm_hook(state, hooks.topk_hook)
    gradient: Any = torch.zeros(COUNT, dtype=torch.float64)
    fake.lent = 0
    shares = []
    for _ in range(8):
        model.zero_grad()
        model(given[0][None].to(dtype)).sum().backward()
        gradient += model.module.weight.grad[0].double()
        shares.append((model.module.weight.grad[0] != 0).double().mean().item())
    left = torch.zeros(COUNT, dtype=torch.float64)
    if "bucket0" in state.kept:
        left = state.kept["bucket0"].view(-1)[:COUNT].double()
    record = {
        "topk": str(dtype),
        "off": (gradient + left - 8 * given[0]).abs().max().item(),
        "share": max(shares),
        "copied": fake.lent / 8 / COUNT,
    }
    if rank == 0:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
