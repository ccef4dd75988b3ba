# SPDX-License-Identifier: Apache-2.0
"""LocalSGD on three ranks beside the same in one process; torch's post-local-SGD over Gloo too."""

import copy
import json
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import LocalSGD
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

SIZE = 3


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(5, 6, generator=draw)
    return (model(inputs) - inputs[:, :2].sin() - 0.1 * rank).square().mean()


def inner(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)


def together(rank: int, every: int, steps: int, **outer: Any) -> nn.Module:
    """By the class; each rank has begun with a model of its own."""
    model = network(rank)
    buffers = [one for one in model.buffers() if one.dtype.is_floating_point]
    optimizer = LocalSGD(inner(model), every, buffers=buffers, **outer)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
        if step == steps // 2:  # a checkpoint on the way changes nothing
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model = network(77)
            buffers = [one for one in model.buffers() if one.dtype.is_floating_point]
            optimizer = LocalSGD(inner(model), every, buffers=buffers, **outer)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
    assert optimizer.averages == steps // every
    return model


def alone(every: int, steps: int, rate: float, momentum: float) -> nn.Module:
    """All ranks in this process; the outer optimiser is torch's."""
    center = network(0)
    models = [copy.deepcopy(center) for _ in range(SIZE)]
    optimizers = [inner(model) for model in models]
    outer = torch.optim.SGD(center.parameters(), rate, momentum=momentum, nesterov=momentum > 0)
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        if (step + 1) % every:
            continue
        for number, one in enumerate(center.parameters()):
            mean = torch.stack([list(model.parameters())[number].data for model in models]).mean(0)
            one.grad = one.data - mean
        outer.step()
        for number, one in enumerate(center.buffers()):
            if one.dtype.is_floating_point:
                one.copy_(torch.stack([list(model.buffers())[number] for model in models]).mean(0))
        for model in models:
            for mine, one in zip(model.parameters(), center.parameters(), strict=True):
                mine.data.copy_(one.data)
            for mine, one in zip(model.buffers(), center.buffers(), strict=True):
                if one.dtype.is_floating_point:
                    mine.copy_(one)
    return center


def torchs(group: Any, rank: int) -> nn.Module:
    """Torch's post-local SGD: gradients for 4 steps, then models every 2."""
    model = DistributedDataParallel(network(0), process_group=group)
    one = dist.new_group([rank], backend="gloo", use_local_synchronization=True)
    state = PostLocalSGDState(process_group=group, subgroup=one, start_localSGD_iter=4)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=4, process_group=group)
    optimizer = PostLocalSGDOptimizer(optim=inner(model), averager=averager)
    for step in range(11):
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
    return model.module


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def refused(wrong: dict[str, Any]) -> None:
    try:
        LocalSGD(inner(network(0)), **wrong)
    except ValueError as error:
        print(error, flush=True)


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, world = dist.get_rank(), dist.group.WORLD
    diloco = {"outer_rate": 0.7, "outer_momentum": 0.9}
    results = {
        "local sgd": apart(together(rank, 4, 12), alone(4, 12, 1.0, 0.0)),
        "diloco": apart(together(rank, 3, 12, **diloco), alone(3, 12, 0.7, 0.9)),
        "int16": apart(together(rank, 4, 12, precision="int16"), alone(4, 12, 1.0, 0.0)),
        "compressor": apart(together(rank, 4, 12, compressor="none"), alone(4, 12, 1.0, 0.0)),
        "factors": apart(together(rank, 4, 12, compressor="powersgd:1"), alone(4, 12, 1.0, 0.0)),
        "torch": apart(torchs(world, rank), torchs(dist.new_group(backend="gloo"), rank)),
    }
    print(json.dumps(results), flush=True)
    refused({"every": 0})
    refused({"every": 1, "outer_momentum": 1.0})
    refused({"every": 1, "outer_rate": 0})
    refused({"every": 1, "precision": "int8", "compressor": "none"})
    dist.destroy_process_group()


main()
