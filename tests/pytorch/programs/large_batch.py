# SPDX-License-Identifier: Apache-2.0
"""LARS with the parameters' rows spread over the ranks, beside whole parameters in each."""

import json

import torch
import torch.distributed as dist
from p4reduce.torch import statistics
from p4reduce.torch.large_batch import LARS

STEPS = 5
SCALES = (1e-4, 1.0, 1e4)  # norms that differ by far share a block of the switch's


def gradients(step: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    shapes = [(6, 4), (9, 2), (3, 5)]
    sized = zip(shapes, SCALES, strict=True)
    return [scale * torch.randn(shape, generator=draw) for shape, scale in sized]


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = [torch.nn.Parameter(one.clone()) for one in gradients(77)]
    whole.append(torch.nn.Parameter(torch.ones(3)))  # a bias: the plain rate
    mine = [torch.nn.Parameter(torch.tensor_split(one.data, size)[rank].clone()) for one in whole]
    settings = {"lr": 0.5, "momentum": 0.9, "weight_decay": 1e-3, "trust": 0.02}
    reference = LARS(whole, **settings)
    sharded = LARS(mine, shards=dist.group.WORLD, **settings)
    for step in range(STEPS):
        for one, part, gradient in zip(
            whole, mine, [*gradients(step), torch.full((3,), 0.1)], strict=True
        ):
            one.grad = gradient
            part.grad = torch.tensor_split(gradient, size)[rank].clone()
        reference.step()
        sharded.step()
    apart = [
        float((torch.tensor_split(one, size)[rank] - part).abs().max() / one.abs().max())
        for one, part in zip(whole, mine, strict=True)
    ]
    calls = statistics().switch["LARS"].calls
    print(json.dumps({"apart": apart, "calls": calls}), flush=True)
    dist.destroy_process_group()


main()
