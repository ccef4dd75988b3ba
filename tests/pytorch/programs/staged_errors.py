# SPDX-License-Identifier: Apache-2.0
"""Collectives of a fake accelerator that fail while others are under way.

Arguments: how, and a seed. Each rank prints what it was told, and how much host memory is left out.
"""

import contextlib
import json
import os
import random
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from fake_accelerator import FakeAccelerator, install
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CALLS = 12
LONG = 2_500_000  # elements: summed in parts
HOW, SEED = sys.argv[1], int(sys.argv[2])


class Lost:
    """Ends the process of rank 1 when some backward passes have come to its gradient."""

    def __init__(self, passes: int) -> None:
        self.left = passes

    def __call__(self, gradient: torch.Tensor) -> None:
        self.left -= 1
        if not self.left and dist.get_rank() == 1:
            os._exit(0)


def trouble_of(work: Any) -> str:
    """Wait for a work; return its error, or nothing."""
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def wait_for(works: list[Any], told: list[str]) -> None:
    told.extend(filter(None, map(trouble_of, works)))


def calls(draw: random.Random, gate: threading.Event, fake: FakeAccelerator) -> list[Any]:
    """Start collectives, some of which get no further than the copy down."""
    works = []
    for number in range(CALLS):
        if number == CALLS // 2:
            fake.hold(["down"], gate)
        count = LONG if draw.random() < 0.1 else draw.randrange(1, 3000)
        operation = draw.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX])
        works.append(dist.all_reduce(torch.ones(count), operation, async_op=True))
        if draw.random() < 0.3:
            works[-1].get_future()
    return works


def train(told: list[str]) -> None:
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(100, 500), nn.Linear(500, 100)), bucket_cap_mb=0.05
    )
    model.register_comm_hook(hooks.HookState(error_feedback=True), hooks.int8_hook)
    first = next(model.parameters())
    first.register_hook(Lost(3))
    try:
        for _ in range(5):
            model(torch.ones(8, 100)).square().mean().backward()
    except RuntimeError as error:
        told.append(str(error))


def main() -> None:
    rank, draw = int(os.environ["RANK"]), random.Random(SEED)
    fake = FakeAccelerator(SEED + rank, kernels=False, longest=0.002)
    install(lambda tensor: True, fake)
    dist.init_process_group("p4reduce")
    told: list[str] = []
    record: dict[str, Any] = {}
    gate = threading.Event()
    if HOW == "lost_in_a_hook":
        train(told)
    elif HOW == "overflow":
        works = calls(draw, gate, fake)
        works.append(dist.all_reduce(torch.tensor([2**31 - 1], dtype=torch.int32), async_op=True))
        gate.set()
        wait_for(works, told)
        after = torch.ones(3)
        dist.all_reduce(after)
        record["after"] = after.max().item()
    elif HOW == "shapes":
        works = [dist.all_reduce(torch.ones(3 + rank), async_op=True), *calls(draw, gate, fake)]
        gate.set()
        wait_for(works, told)
    else:
        works = calls(draw, gate, fake)
        if HOW == "abort":
            threading.Timer(0.3, gate.set).start()
            dist.group.WORLD.abort()
        elif rank == 1:
            os._exit(0)
        else:
            gate.set()
        wait_for(works, told)
    works = []
    record["errors"] = told
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    record["held"] = fake.memory.held_in_the_end()
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
