# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel with its gradients summed by the switch. Run it with

p4reduce-lab exec -n 4 -- python examples/pytorch_ddp.py

DDP hands each bucket of gradients to a *communication hook* as soon as it is complete, while the
backward pass goes on; ``p4reduce_hook`` is one. The process group (gloo, on this machine) only
carries what DDP does at the start: comparing and broadcasting the initial parameters.
Takes ``pip install torch`` (the CPU build will do).
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import p4reduce
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


class SwitchState:
    """What the hook needs: the communicator, and a thread that waits for results."""

    def __init__(self, comm: p4reduce.Communicator) -> None:
        self.comm = comm
        self.waiter = ThreadPoolExecutor(1, "p4reduce-wait")


def p4reduce_hook(
    state: SwitchState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all ranks in the switch, in place, without blocking the backward
    pass. Buckets must be float32 or float16 on the CPU.

    Example::

        model.register_comm_hook(SwitchState(comm), p4reduce_hook)
    """
    tensor = bucket.buffer()
    array = tensor.numpy()  # the same memory
    handle = state.comm.allreduce_async(
        array, op=p4reduce.MEAN, name=f"bucket{bucket.index()}", out=array
    )
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def wait() -> None:
        try:
            handle.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(tensor)

    state.waiter.submit(wait)
    return future


def main() -> None:
    """Trains a small network on data that each rank has its own part of."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # All ranks are children of one launcher: its pid names a file for them to meet at.
    meeting = Path(tempfile.gettempdir(), f"p4reduce-ddp-{os.getppid()}")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)

    with p4reduce.init() as comm:
        torch.manual_seed(rank)  # DDP broadcasts rank 0's parameters, so seeds may differ
        network = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
        model = DistributedDataParallel(network)
        model.register_comm_hook(SwitchState(comm), p4reduce_hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

        inputs = torch.randn(256, 20)
        targets = torch.sin(inputs.sum(dim=1, keepdim=True))
        for step in range(STEPS):
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimiser.step()
            if rank == 0 and step % 20 == 0:
                print(f"step {step:3d}  loss {loss.item():.4f}")

        # All ranks took the same steps, so the integer checksum of their weights is size times
        # anyone's.
        weights = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
        bits = weights.numpy().view("int32") >> 8
        total = comm.allreduce(bits)
        same = bool((total == bits * size).all())
        print(f"rank {rank}: final loss {loss.item():.4f}, weights equal on all ranks: {same}")

    dist.destroy_process_group()
    if rank == 0:
        meeting.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
