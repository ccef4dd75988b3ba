# SPDX-License-Identifier: Apache-2.0
"""Steps with closures, partial accumulations, few samples: beside the same in one process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import p4reduce.horovod as hvd
import torch
from torch import nn

STEPS = 3
EVERYTHING = range(3)  # the ranks, whose data one process has alone


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    wanted = inputs.sum(1, keepdim=True) * (1 + rank)
    return (model(inputs) - wanted).square().mean()


def numbers(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def apart(case: str, model: nn.Module, right: nn.Module, **more: Any) -> None:
    """Say whether the ranks have the same weights, and how far they are from one process's."""
    mine = numbers(model)
    alike = all(torch.equal(mine, other) for other in hvd.allgather_object(mine))
    distance = float((mine - numbers(right)).abs().max())
    print(json.dumps({"case": case, "alike": alike, "apart": distance, **more}), flush=True)


Closure = Callable[[], Any]


def own_loss(model: nn.Module, optimizer: Any, step: int, factor: float) -> Closure:
    """The usual closure: this rank's batch."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        own = factor * loss(model, step, hvd.rank())
        own.backward()
        return own

    return closure


def whole_loss(model: nn.Module, optimizer: Any, step: int, factor: float) -> Closure:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = factor * sum(loss(model, step, rank) for rank in EVERYTHING)
        total.backward()
        return total

    return closure


def closures(case: str, kind: Any, op: Any = hvd.Average, passes: int = 1, **options: Any) -> None:
    model, right = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(
        kind(model.parameters(), **options), model.named_parameters(), op=op,
        backward_passes_per_step=passes,
    )  # fmt: skip
    alone = kind(right.parameters(), **options)
    factor = 1 / 3 if op == hvd.Average else 1.0
    far = 0.0
    for step in range(STEPS):
        got = optimizer.step(own_loss(model, optimizer, step, 1.0))
        wanted = alone.step(whole_loss(right, alone, step, factor))
        far = max(far, abs(float(got) - float(wanted)) / abs(float(wanted)))
    apart(case, model, right, loss=far)


def clipped() -> None:
    """A closure that looks at the sums itself, as one that clips gradients does."""
    model, right = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    alone = torch.optim.SGD(right.parameters(), lr=0.1)
    for step in range(STEPS):
        inner, whole = own_loss(model, optimizer, step, 1.0), whole_loss(right, alone, step, 1.0)

        def ours(inner: Closure = inner) -> Any:
            own = inner()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return own

        def theirs(whole: Closure = whole) -> Any:
            total = whole()
            nn.utils.clip_grad_norm_(right.parameters(), 0.5)
            return total

        if step == 1:
            with optimizer.skip_synchronize():
                optimizer.step(ours)
        else:
            optimizer.step(ours)
        alone.step(theirs)
    apart("clipped", model, right)


def before() -> None:
    """The backward pass is over before `step`, whose closure gives the loss alone, or nothing."""
    model, right = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), op=hvd.Sum
    )
    alone = torch.optim.SGD(right.parameters(), lr=0.05)
    for step in range(STEPS):
        own_loss(model, optimizer, step, 1.0)()
        assert optimizer.step(lambda: None) is None
        alone.step(whole_loss(right, alone, step, 1.0))
    apart("before", model, right)


def odd(case: str, passes: int, drop: str, batches: int) -> None:
    """Epochs whose last batches are fewer than a step takes; the next epoch drops them."""
    model, right = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
        backward_passes_per_step=passes,
    )  # fmt: skip
    alone = torch.optim.SGD(right.parameters(), lr=0.1)
    for epoch in range(3):
        for batch in range(batches):
            if batch % passes == 0:
                if drop == "model":
                    model.zero_grad()
                else:
                    optimizer.zero_grad(set_to_none=drop == "none")
                alone.zero_grad()
            loss(model, 10 * epoch + batch, hvd.rank()).backward()
            for rank in EVERYTHING:
                (loss(right, 10 * epoch + batch, rank) / 3).backward()
            if batch % passes == passes - 1:
                optimizer.step()
                alone.step()
    apart(case, model, right)


def in_flight() -> None:
    """What is being summed cannot be dropped."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    loss(model, 0, hvd.rank()).backward()
    refused = 0
    try:
        optimizer.zero_grad()
    except AssertionError as error:
        refused += "before step() or synchronize()" in str(error)
    model.zero_grad()
    try:
        loss(model, 1, hvd.rank()).backward()
    except AssertionError as error:
        refused += "more than backward_passes_per_step=1 times" in str(error)
    optimizer.step()
    apart("in flight", model, model, refused=refused)


def few_samples() -> Iterator[list[int]]:
    for shuffle in (True, False):
        for samples in range(8):
            sampler = hvd.elastic.ElasticSampler(range(samples), shuffle=shuffle)
            yield list(sampler)
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    sampler.record_batch(0, 3)  # nine are processed
    sampler.load_state_dict(sampler.state_dict())
    yield list(sampler)


def main() -> None:
    hvd.init()
    sgd = torch.optim.SGD
    closures("sgd", sgd, lr=0.1, momentum=0.9)
    closures("sum", sgd, hvd.Sum, lr=0.05)
    closures("two passes", sgd, passes=2, lr=0.1)
    closures("lbfgs", torch.optim.LBFGS, max_iter=4, lr=0.2)
    closures("line search", torch.optim.LBFGS, max_iter=5, line_search_fn="strong_wolfe")
    clipped()
    before()
    odd("odd", 2, "none", 5)
    odd("odd zeros", 2, "zeros", 3)
    odd("two left", 3, "none", 5)
    odd("by the model", 2, "model", 3)
    in_flight()
    every = hvd.allgather_object(list(few_samples()))
    print(json.dumps({"case": "samples", "every": every}), flush=True)
    hvd.shutdown()


main()
