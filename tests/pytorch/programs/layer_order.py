# SPDX-License-Identifier: Apache-2.0
"""LayerOrder with several classes and with one, beside steps of the whole model."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import p4reduce
import torch
from p4reduce.torch import LayerOrder, hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
WIDTH = 16


class Model(nn.Module):
    """With attention, whose inner layer's weights are used without a call of it, and tied ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).tanh()
        return self.last(self.norm(hidden + self.attention(hidden, hidden, hidden)[0]))


def model(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


def loss(net: nn.Module, rank: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(4, 3, WIDTH, generator=draw)
    return (net(inputs) - inputs.sin()).square().mean()


def inner(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def bits(net: nn.Module) -> str:
    return b"".join(one.detach().numpy().tobytes() for one in net.parameters()).hex()


def in_order(comm: p4reduce.Communicator, **options: Any) -> str:
    net = model(comm.rank)
    order = LayerOrder(net, inner, group=comm, **options)
    for step in range(STEPS):
        loss(net, comm.rank, step).backward()
    order.finish()
    return bits(net)


def whole(comm: p4reduce.Communicator) -> str:
    """By one optimiser, after all means; a layer's gradients in a row as in LayerOrder."""
    net = model(0)
    optimizer = inner(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net, comm.rank, step).backward()
        seen: set[int] = set()
        for module in net.modules():
            own = [one for one in module.parameters(recurse=False) if id(one) not in seen]
            seen.update(map(id, own))
            if own:
                row = np.concatenate([one.grad.numpy().reshape(-1) for one in own])
                comm.allreduce(row, p4reduce.MEAN, out=row)
                for one, part in zip(
                    own, np.split(row, np.cumsum([one.numel() for one in own])[:-1]), strict=True
                ):
                    one.grad.copy_(torch.from_numpy(part).view_as(one))
        optimizer.step()
    return bits(net)


class Recording(hooks.HookState):
    """Writes down the priority of each bucket."""

    def __init__(self, comm: p4reduce.Communicator) -> None:
        super().__init__(comm)
        self.chosen: list[int] = []

    def priority(self, bucket: Any) -> int:
        self.chosen.append(super().priority(bucket))
        return self.chosen[-1]


def by_ddp(comm: p4reduce.Communicator) -> tuple[str, Sequence[int]]:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(7)])
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.016)
    state = Recording(comm)
    ddp.register_comm_hook(state, hooks.allreduce_hook)
    for step in range(3):
        ddp.zero_grad()
        draw = torch.Generator().manual_seed(100 * step + comm.rank)
        ddp(torch.randn(4, 64, generator=draw)).square().mean().backward()
    return b"".join(one.grad.numpy().tobytes() for one in net.parameters()).hex(), state.chosen


def words(call: Any) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def twice(comm: p4reduce.Communicator) -> None:
    net = model(0)
    LayerOrder(net, inner, group=comm)
    value = loss(net, comm.rank, 0)
    value.backward(retain_graph=True)
    value.backward()


def unused(comm: p4reduce.Communicator) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    order = LayerOrder(net, inner, group=comm)
    (net[0].weight.sum() + net(torch.ones(1, 4)).sum() * 0).backward()
    order.finish()
    net(torch.ones(1, 4))
    net[0].bias.sum().backward()
    order.finish()


def main() -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    with (
        p4reduce.init(slots=32, urgent_slots=[4, 4, 4]) as comm,
        comm.dup(slots=8, urgent_slots=0) as plain,
    ):
        record = {
            "same": in_order(comm) == in_order(plain) == whole(plain),
            "int16": in_order(comm, precision="int16") != in_order(comm),
        }
        (one, chosen), (other, never) = by_ddp(comm), by_ddp(plain)
        record |= {"ddp": one == other, "chosen": chosen, "never": sorted(set(never))}
        print(json.dumps(record))
        print(words(lambda: twice(comm.dup())))
        print(words(lambda: unused(comm.dup())))
        print(words(lambda: LayerOrder(nn.Tanh(), inner, group=comm)))
    torch.distributed.destroy_process_group()


main()
