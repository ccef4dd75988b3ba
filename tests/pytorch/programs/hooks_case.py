# SPDX-License-Identifier: Apache-2.0
"""A rank that trains the same network with each hook, and prints what came of it.

A line of JSON for each: the loss at the end, whether all ranks have the same weights, and how many
bytes went to the switch. Also PowerSGD, and torch's own wrapper around our hook.
"""

import hashlib
import json
import sys
from typing import Any

import p4reduce
import torch
import torch.distributed as dist
from p4reduce.torch import hooks, statistics
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 30

HOOKS = (
    "allreduce_hook",
    "int16_hook",
    "int8_hook",
    "int4_hook",
    "topk_hook",
    "elements_hook",
    "hierarchical_hook",
    "cat_hook",
    "majority_hook",
    "onebit_hook",
)


def train(
    name: str, hook: Any, state: Any, comm: Any, bucket: float = 0.02, rate: float = 0.05
) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(size * 32, 20)
    wanted = torch.sin(inputs.sum(dim=1, keepdim=True))
    inputs, wanted = inputs[rank::size], wanted[rank::size]
    network = nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 64), nn.Linear(64, 1))
    model = DistributedDataParallel(network, bucket_cap_mb=bucket)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    before = 0 if comm is None else comm.stats.bytes_sent
    wire = statistics().bytes_sent
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimiser.step()
    sent = 0 if comm is None else comm.stats.bytes_sent - before
    wire = statistics().bytes_sent - wire
    weights = torch.cat([one.detach().ravel() for one in model.parameters()])
    digests: list[Any] = [None] * size
    dist.all_gather_object(digests, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    losses: list[Any] = [None] * size
    dist.all_gather_object(losses, loss.item())
    same = len(set(digests)) == 1
    record = {"hook": name, "loss": sum(losses) / size, "same": same, "sent": sent, "wire": wire}
    print(json.dumps(record), flush=True)


def sparse(state: hooks.HookState) -> None:
    """An embedding's gradient, which is uncoalesced, against the one computed densely."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in HOOKS:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Embedding(10_000, 8, sparse=True))
        model.register_comm_hook(state, getattr(hooks, name))
        words = torch.randint(10_000, (size, 50))
        words[:, 25:] = words[:, :25]  # each twice
        factors = torch.randn(size, 50, 8)
        (model(words[rank]) * factors[rank]).sum().backward()
        gradient = model.module.weight.grad
        dense = torch.zeros(10_000, 8).index_add_(0, words.ravel(), factors.view(-1, 8)) / size
        off = (gradient.to_dense() - dense).abs().max().item()
        record = {"sparse": name, "is_sparse": gradient.is_sparse, "off": off}
        print(json.dumps({**record, "rows": gradient._nnz()}), flush=True)


def votes(state: hooks.HookState) -> None:
    """What the hooks of signs make of one gradient, and of one that is not finite."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(size * 5000, dtype=torch.float32).reshape(size, 5000).sin()
    rows[:, 7] = 0
    for name in ("majority_hook", "onebit_hook"):
        state.kept.clear()
        for finite in (True, False):
            model = DistributedDataParallel(nn.Linear(5000, 1, bias=False))
            model.register_comm_hook(state, getattr(hooks, name))
            given = rows.clone()
            if not finite:
                given[0, 4999] = torch.inf
            model(given[rank][None]).sum().backward()
            gradient = model.module.weight.grad[0]
            wanted = rows.sign().sum(dim=0).sign()
            if name == "onebit_hook":
                means = torch.stack(
                    [part.abs().mean(dim=1) for part in rows.split(2048, dim=1)]
                ).mean(dim=1)
                each = means.repeat_interleave(2048)[:5000]
                wanted = rows.sign().sum(dim=0) / size * each
            off = (gradient - wanted).abs()
            kept = 0.0
            if name == "onebit_hook" and not finite:
                # What reached nobody waits: of a rank's own numbers all that are finite.
                mine = given[rank].nan_to_num(posinf=0.0)
                (waiting,) = state.kept.values()
                kept = (torch.from_numpy(waiting) - mine)[4096:].abs().max().item()
            print(
                json.dumps(
                    {
                        "votes": name,
                        "finite": finite,
                        "off": off.nan_to_num(9).max().item(),
                        "nan": gradient.isnan().sum().item(),
                        "kept": kept,
                    }
                ),
                flush=True,
            )
            state.kept.clear()


def main() -> None:
    beside = sys.argv[1] == "beside"  # a communicator beside Gloo, or the backend's group
    dist.init_process_group("gloo" if beside else "p4reduce")
    comm = p4reduce.init() if beside else hooks.HookState().channel.comm
    group = comm if beside else None
    train("none", None, None, comm)
    for name in HOOKS:
        state = hooks.HookState(group, density=0.2)
        # A step of signs moves each parameter by the rate.
        rate = 0.002 if name == "majority_hook" else 0.05
        train(name, getattr(hooks, name), state, comm, rate=rate)
    feedback = hooks.HookState(group, error_feedback=True)
    train("int8_hook with feedback", hooks.int8_hook, feedback, comm)
    for name in ("powersgd:2", "powersgd:2/int16", "gradiveq:32"):
        state = hooks.HookState(group, compressor=name)
        train(name, hooks.compressed_hook, state, comm)
    wrapped = default_hooks.fp16_compress_wrapper(hooks.allreduce_hook)
    train("fp16 wrapper", wrapped, hooks.HookState(group), comm)
    bucket = 10.0 if beside else 0.02  # with several buckets it does not end over Gloo
    train("PowerSGD", powerSGD_hook, PowerSGDState(None, start_powerSGD_iter=2), comm, bucket)
    sparse(hooks.HookState(group))
    votes(hooks.HookState(group))
    before = statistics()
    if beside:
        comm.close()
    dist.destroy_process_group()
    after = statistics()
    print(json.dumps({"open": before.bytes_sent, "closed": after.bytes_sent}), flush=True)


if __name__ == "__main__":
    main()
