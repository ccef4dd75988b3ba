# SPDX-License-Identifier: Apache-2.0
"""Trainings by DistributedOptimizer, beside the same in this process alone with all the data."""

import json
from typing import Any

import p4reduce.horovod as hvd
import torch
from torch import nn

STEPS = 4
BATCH = 6  # of each rank


class Net(nn.Module):
    """An embedding, and a layer that counts only where `extra` says so."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4, sparse=sparse)
        self.first, self.second, self.extra = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, words: torch.Tensor, extra: bool) -> torch.Tensor:
        hidden = torch.tanh(self.first(self.table(words)))
        return self.second(hidden) + (self.extra(hidden) if extra else 0.0)


def data(step: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(50, (BATCH,), generator=draw)


def loss(model: Net, step: int, rank: int) -> torch.Tensor:
    """Of one rank's batch. Rank 1's gradients lack the extra layer's."""
    return (model(data(step, rank), extra=rank != 1) - 1.0).square().mean()


def alone(
    kind: Any, sparse: bool, passes: int, factor: float, **options: Any
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net(sparse)
    optimizer = kind(model.parameters(), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            for rank in range(hvd.size()):
                (factor * loss(model, passes * step + number, rank)).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def together(
    kind: Any, sparse: bool, passes: int, given: dict[str, Any], **options: Any
) -> list[torch.Tensor]:
    torch.manual_seed(hvd.rank())
    model = Net(sparse)
    if hvd.rank() == 0:
        torch.manual_seed(0)
        model = Net(sparse)
    if given.get("groups") == "lists":
        given = {**given, "groups": [[*model.first.parameters()], [*model.second.parameters()]]}
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if hvd.rank() != 0:
        options = {**options, "lr": 77.0}  # is rank 0's after broadcast_optimizer_state
    optimizer = kind(model.parameters(), **options)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=passes, **given
    )
    assert isinstance(optimizer, kind)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            loss(model, passes * step + number, hvd.rank()).backward()
        if step == 1:
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
    return [one.detach() for one in model.parameters()]


def case(name: str, kind: Any, given: dict[str, Any], **settings: Any) -> None:
    sparse, passes = settings.pop("sparse", False), settings.pop("passes", 1)
    factor = 1.0 if given.get("op") == hvd.Sum else 1.0 / hvd.size()
    got = together(kind, sparse, passes, given, **settings)
    right = alone(kind, sparse, passes, factor, **settings)
    apart = max(float((a - b).abs().max()) for a, b in zip(got, right, strict=True))
    print(json.dumps({"case": name, "apart": apart}), flush=True)


def main() -> None:
    hvd.init()
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    fast = {"lr": 0.1, "momentum": 0.9}
    case("plain", sgd, {}, **fast)
    case("adam", adam, {}, lr=0.01)
    case("sum", sgd, {"op": hvd.Sum}, **fast)
    case("passes", sgd, {}, passes=3, **fast)
    case("predivided", sgd, {"gradient_predivide_factor": 4.0}, **fast)
    case("groups", sgd, {"groups": 3}, **fast)
    case("lists", sgd, {"groups": "lists"}, **fast)
    case("sparse", sgd, {}, sparse=True, lr=0.1)
    case("sparse as dense", sgd, {"sparse_as_dense": True}, sparse=True, lr=0.1)
    case("fp16", sgd, {"compression": hvd.Compression.fp16}, **fast)
    hvd.shutdown()


main()
