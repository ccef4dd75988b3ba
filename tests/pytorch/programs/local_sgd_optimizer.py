# SPDX-License-Identifier: Apache-2.0
"""LocalSGD where torch expects one of its own optimizers: schedulers, scalers, checkpoints."""

import copy
import io
import json
import warnings
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import LocalSGD
from torch import nn


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=draw)).square().mean().backward()
        optimizer.step()


def made(every: int, **options: Any) -> tuple[nn.Module, LocalSGD]:
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    return model, LocalSGD(inner, every, model=model, **options)


def warned(work: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in caught]


def main() -> None:
    dist.init_process_group("p4reduce")
    rank = dist.get_rank()
    found: dict[str, Any] = {}

    model, optimizer = made(2)
    found["is one"] = isinstance(optimizer, torch.optim.Optimizer)
    found["groups"] = optimizer.param_groups is optimizer.optimizer.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    hooked: list[int] = []
    optimizer.register_step_post_hook(lambda *_: hooked.append(1))
    for _ in range(2):
        trained(model, optimizer, 1, rank)
        scheduler.step()
    found["rates"] = [one["lr"] for one in optimizer.optimizer.param_groups]
    found["hooked"] = len(hooked)
    found["repr"] = repr(optimizer).startswith("LocalSGD")

    # Right after an average: nothing to warn of. In between: saving and evaluating warn once.
    found["in step"] = warned(lambda: (optimizer.state_dict(), model.eval()(torch.ones(4))))
    model.train()
    trained(model, optimizer, 1, rank)
    found["apart"] = warned(optimizer.state_dict)
    found["again"] = warned(optimizer.state_dict)
    other, second = made(2)
    trained(other, second, 1, rank)
    found["evaluated"] = warned(lambda: other.eval()(torch.ones(4)))
    another, third = made(2)
    trained(another, third, 1, rank)
    found["model saved"] = warned(another.state_dict)

    # There and back, by a file.
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()), file)
    file.seek(0)
    saved = torch.load(file)
    copied, loaded = made(2)
    later = torch.optim.lr_scheduler.StepLR(loaded, 1, gamma=0.5)
    copied.load_state_dict(saved[0])
    loaded.load_state_dict(saved[1])
    later.load_state_dict(saved[2])
    found["groups later"] = loaded.param_groups is loaded.optimizer.param_groups
    for a, b in ((model, optimizer), (copied, loaded)):
        trained(a, b, 3, 7 + rank)
    found["same"] = all(
        torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True)
    )
    found["averages"] = [optimizer.averages, loaded.averages]
    try:
        loaded.load_state_dict(copy.deepcopy(loaded.optimizer.state_dict()))
    except ValueError as error:
        found["plain"] = str(error)

    # One rank's gradients are not finite: it leaves out the step, not the average.
    model, optimizer = made(2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(4)).sum() * (float("inf") if rank == step == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found["scaled averages"] = optimizer.averages
    weight = model.weight.detach()
    found["finite"] = bool(weight.isfinite().all())
    both = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(both, weight)
    found["ranks agree"] = torch.equal(both[0], both[1])
    # Rank 0: one step of 1; rank 1: of 1 and 1.5. From the start, by the mean of both.
    torch.manual_seed(1)
    found["moved"] = float((nn.Linear(4, 2).weight - weight).mean())
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


main()
