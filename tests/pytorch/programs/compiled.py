# SPDX-License-Identifier: Apache-2.0
"""torch.compile of models and functions that communicate, over this backend and over Gloo."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COMPILER = "eager"  # Dynamo traces; what it found is run as it is


def train(
    group: Any, *, buffers: bool, whole_step: bool = False, hook: bool = False
) -> list[float]:
    """The loss of each of four steps."""
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(16)] if buffers else []
    plain = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), *norm, nn.ReLU(), nn.Linear(16, 2)), process_group=group
    )
    if hook and group is dist.group.WORLD:
        plain.register_comm_hook(hooks.HookState(), hooks.allreduce_hook)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    model = plain if whole_step else torch.compile(plain, backend=COMPILER)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch.compile(step, backend=COMPILER) if whole_step else step
    torch.manual_seed(1 + dist.get_rank())
    return [float(run(torch.randn(4, 8))) for _ in range(4)]


def called(call: Callable[[torch.Tensor, Any], torch.Tensor | None], group: Any) -> list[float]:
    """The result of a compiled function that calls a collective between two operations."""

    def function(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        result = call(doubled, group)
        return (doubled if result is None else result) + 1

    compiled = torch.compile(function, backend=COMPILER)
    start = torch.arange(4.0) + 10 * dist.get_rank()
    return [float(value) for _ in range(2) for value in compiled(start).flatten()]


def broadcast(tensor: torch.Tensor, group: Any) -> None:
    dist.broadcast(tensor, 0, group=group)


def all_reduce(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def asynchronous(tensor: torch.Tensor, group: Any) -> None:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()


def largest(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)


def barrier(tensor: torch.Tensor, group: Any) -> None:
    dist.barrier(group=group)


def all_gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor, group=group)
    return torch.stack(parts)


def all_to_all(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    result = torch.empty(4)
    dist.all_to_all_single(result, tensor, group=group)
    return result


def main() -> None:
    dist.init_process_group("p4reduce")
    gloo = dist.new_group(backend="gloo")
    cases: dict[str, Callable[[Any], list[float]]] = {
        "model": lambda group: train(group, buffers=False),
        "model with buffers": lambda group: train(group, buffers=True),
        "model with a hook": lambda group: train(group, buffers=True, hook=True),
        "whole step": lambda group: train(group, buffers=True, whole_step=True, hook=True),
    }
    for call in (broadcast, all_reduce, asynchronous, largest, barrier, all_gather, all_to_all):
        cases[call.__name__] = lambda group, call=call: called(call, group)  # type: ignore[misc]
    for name, case in cases.items():
        results = [case(dist.group.WORLD), case(gloo)]
        print(json.dumps({"case": name, "ours": results[0], "gloo": results[1]}), flush=True)
    dist.destroy_process_group()


main()
