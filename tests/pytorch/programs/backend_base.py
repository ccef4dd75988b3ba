# SPDX-License-Identifier: Apache-2.0
"""A rank whose torch has `dist.BackendBase`: 2.14's class, by the name that later ones have for it.

Prints a line of JSON: what it got, beside what is right.
"""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from p4reduce.torch.group import ours
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def trained(hook: object, state: object) -> list[float]:
    """The gradients' sum on this rank after four steps with several buckets."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(40, 40) for _ in range(6)]), bucket_cap_mb=0.01
    )
    if hook is not None:
        model.register_comm_hook(state, hook)
    for step in range(4):
        model.zero_grad()
        model(torch.full((2, 40), 1.0 + step + dist.get_rank())).sum().backward()
    return [parameter.grad.sum().item() for parameter in model.parameters()]


def main() -> None:
    dist.BackendBase = torch._C._distributed_c10d.Backend
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = ours(dist.group.WORLD)
    record = {"is_backend": isinstance(backend, dist.BackendBase)}

    total = torch.full((1000,), float(rank + 1))
    work = dist.all_reduce(total, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    record["then"] = [doubled.wait()[0].item(), size * (size + 1.0)]
    greatest = torch.tensor([rank])
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    record["max"] = [greatest.item(), size - 1]
    told = torch.full((3,), rank)
    dist.broadcast(told, src=1)
    record["broadcast"] = [told.tolist(), [1, 1, 1]]
    whole = torch.empty(size, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, torch.tensor([rank]))
    record["gathered"] = [whole.tolist(), list(range(size))]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.ones(2 * size))
    record["scattered"] = [part.tolist(), [float(size)] * 2]
    names: list[object] = [None] * size
    dist.all_gather_object(names, f"rank {rank}")
    record["objects"] = [names, [f"rank {other}" for other in range(size)]]
    if rank < 2:
        tensor = torch.full((2,), 7)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor.zero_(), 0)
        record["received"] = [tensor.tolist(), [7, 7]]
    half = dist.new_group([0, 1])
    if rank < 2:
        one = torch.ones(1)
        dist.all_reduce(one, group=half)
        record["subgroup"] = [one.item(), 2.0]
    dist.barrier()
    dist.monitored_barrier()
    plain = trained(None, None)
    record["hook"] = [trained(hooks.allreduce_hook, hooks.HookState()), plain]
    # Whose callbacks call collectives: they have to keep their order.
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    record["power"] = [len(trained(powerSGD_hook.powerSGD_hook, state)), len(plain)]
    print(json.dumps(record), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
