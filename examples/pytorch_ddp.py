# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel with its gradients summed by the switch. Run it with

p4reduce-lab exec -n 4 -- python examples/pytorch_ddp.py

DDP hands each bucket of gradients to a *communication hook* as soon as it is complete, while the
backward pass goes on; ``p4reduce_hook`` is one. The process group (gloo, on this machine) only
carries what DDP does at the start: comparing and broadcasting the initial parameters.
Takes ``pip install torch`` (the CPU build will do).
"""

# No `from __future__ import annotations`: register_comm_hook looks at the hook's annotations, and
# takes them as types only, not as strings.

from concurrent.futures import ThreadPoolExecutor

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
    dist.init_process_group("gloo")  # from the variables that the launcher sets

    with p4reduce.init() as comm:
        torch.manual_seed(comm.rank)  # DDP broadcasts rank 0's parameters, so seeds may differ
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
            if comm.rank == 0 and step % 20 == 0:
                print(f"step {step:3d}  loss {loss.item():.4f}")

        # Are the weights the same on all ranks? Their bits, divided so that nothing
        # overflows, then sum up to those of this rank times the number of ranks.
        weights = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
        bits = weights.numpy().view("int32") // comm.size
        same = bool((comm.allreduce(bits) == bits * comm.size).all())
        print(f"rank {comm.rank}: final loss {loss.item():.4f}, same weights: {same}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
