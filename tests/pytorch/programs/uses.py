# SPDX-License-Identifier: Apache-2.0
"""A rank that trains with what is built on process groups, over the backend and over Gloo.

Prints for each how far the parameters are apart in the end, as a line of JSON.
"""

import json
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from p4reduce.torch import statistics
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 33), nn.Linear(33, 1)
    )


def train(model: nn.Module, optimiser: Any) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.randn(16, 20, generator=draw)
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        optimiser.step()
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return [one.detach().clone() for one in whole]


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def ddp(group: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.005)
    return train(model, sgd(model))


def zero(group: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(network(), process_group=group)
    # Not Adam: a bias before a normalisation has no gradient but rounding, of which Adam would
    # make whole steps.
    sharded_sgd = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9
    )
    return train(model, sharded_sgd)


def fsdp(group: Any) -> list[torch.Tensor]:
    mesh = DeviceMesh.from_group(group, "cpu")
    return sharded(mesh)


def sharded(mesh: DeviceMesh) -> list[torch.Tensor]:
    model = network()
    for module in model:
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, sgd(model))


def divided(group: Any) -> list[torch.Tensor]:
    """Gradients divided by another number than that of the ranks."""
    model = network()
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    model.set_gradient_divide_factor(3.0)  # a PREMUL_SUM, which Gloo does not have
    if group is not dist.group.WORLD:
        model.set_force_sum_reduction_for_comms(True)
    return train(model, sgd(model))


def mixed(group: Any) -> list[torch.Tensor]:
    """The first FSDP, which frees the storages of what collectives have filled."""
    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)),
        process_group=group,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.float32),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
    )
    trained = train(model, sgd(model))
    whole = [torch.empty(len(trained[0]) * dist.get_world_size(group))]
    dist.all_gather_into_tensor(whole[0], trained[0], group=group)
    return whole


def uneven(group: Any) -> list[torch.Tensor]:
    """DDP whose ranks have different numbers of batches."""
    model = DistributedDataParallel(network(), process_group=group)
    optimiser = sgd(model)
    for divide_by_all in (False, True):
        with Join([model], divide_by_initial_world_size=divide_by_all):
            for step in range(2 + 3 * dist.get_rank(group)):
                optimiser.zero_grad()
                model(torch.full((8, 20), float(step))).square().mean().backward()
                optimiser.step()
    # The optimiser of a rank that has ended stands still; DDP gives all the last one's model.
    return [one.detach().clone() for one in model.parameters()]


def hsdp(group: Any) -> list[torch.Tensor]:
    """Parts of the model in each half of the ranks, the halves alike."""
    if group is dist.group.WORLD:
        return sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    groups = [dist.new_group(ranks, backend="gloo") for ranks in ([0, 2], [1, 3], [0, 1], [2, 3])]
    mine = [one for one in groups if one != dist.GroupMember.NON_GROUP_MEMBER]
    ranks = torch.arange(4).view(2, 2)
    mesh = DeviceMesh.from_group(mine, "cpu", mesh=ranks, mesh_dim_names=("replicas", "shards"))
    return sharded(mesh)


def collectives(group: Any) -> list[torch.Tensor]:
    """The functional ones, as DTensor and torch.compile call them."""
    size = dist.get_world_size(group)
    mine = torch.arange(4.0 * size) * (dist.get_rank(group) + 1)
    results = [
        functional.all_reduce(mine, "sum", group),
        functional.all_gather_tensor(mine, 0, group),
        functional.reduce_scatter_tensor(mine, "sum", 0, group),
        functional.all_to_all_single(mine, None, None, group),
        functional.broadcast(mine, 0, group),
        *functional.all_reduce_coalesced([mine, 2 * mine], "sum", group),
    ]
    return [functional.wait_tensor(one).clone() for one in results]


def saved(group: Any) -> list[torch.Tensor]:
    """A distributed checkpoint, written and read again."""
    model = network()
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    directory = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(directory, group=group)
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=directory[0], process_group=group)
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=directory[0], process_group=group)
    return [one.full_tensor().detach().clone() for one in model.parameters()]


def main() -> None:
    dist.init_process_group("cpu:p4reduce")
    gloo = dist.new_group(backend="gloo")
    uses: list[Callable[[Any], list[torch.Tensor]]]
    uses = [ddp, zero, fsdp, collectives, saved, divided, mixed, uneven]
    if dist.get_world_size() == 4:
        uses.append(hsdp)
    for use in uses:
        before = dict(statistics().switch)
        ours = use(dist.group.WORLD)
        after = statistics().switch
        theirs = use(gloo)
        apart = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
        names = [name for name in after if after[name] != before.get(name)]
        record = {"use": use.__name__, "apart": apart, "switch": names}
        print(json.dumps(record), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
