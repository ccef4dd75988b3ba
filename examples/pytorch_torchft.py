# SPDX-License-Identifier: Apache-2.0
"""Replicas that are killed and come back, by torchft over the switch: a lost one costs a step.

In one shell ``p4reduce-lab up``, in another ``torchft_lighthouse --min_replicas 2``. Then a shell
for each of three replicas, with what `p4reduce-lab up` prints in the environment:

TORCHFT_LIGHTHOUSE=http://localhost:29510 python examples/pytorch_torchft.py --replica 0

Press Ctrl-C in one of them, or kill it: the others continue. Start it again: it gets the weights
from another replica, and takes part in the next step. All end with the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch.ft import ProcessGroupP4Reduce
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

GROUPS = {"p4reduce": ProcessGroupP4Reduce, "gloo": ProcessGroupGloo}


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a replica's part of a step's batch."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(64, 20, generator=generator)
    return inputs, torch.sin(inputs.sum(dim=1, keepdim=True))


def train(options: argparse.Namespace) -> None:
    """Trains with whichever replicas are there."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    inner = torch.optim.SGD(network.parameters(), lr=0.1)

    def state() -> dict[str, Any]:
        return {"network": network.state_dict(), "optimiser": inner.state_dict()}

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["network"])
        inner.load_state_dict(state["optimiser"])

    timeout = timedelta(seconds=options.timeout)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = GROUPS[options.group](timeout=timeout)
    manager = Manager(
        pg=group,
        min_replica_size=2,
        state_dict=state,
        load_state_dict=load,
        replica_id=f"replica-{options.replica}",
        timeout=timeout,
        store_addr="localhost",
        store_port=store.port,
        rank=0,  # within this replica, which is one process
        world_size=1,
    )
    model = DistributedDataParallel(manager, network)
    optimiser = Optimizer(manager, inner)
    while (step := manager.current_step()) < options.steps:
        optimiser.zero_grad()  # agrees with the others on who takes part
        inputs, targets = batch(step, manager.participating_rank() or 0)
        time.sleep(options.pause)  # in place of a larger network's computing
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()  # does nothing if a replica was lost meanwhile
        committed = "" if manager.current_step() > step else ", which does not count"
        print(
            f"replica {options.replica}: step {step} of {manager.num_participants()} replicas, "
            f"loss {loss.item():.4f}{committed}",
            flush=True,
        )
    weights = b"".join(one.detach().numpy().tobytes() for one in network.parameters())
    print(f"replica {options.replica}: weights {hashlib.sha256(weights).hexdigest()[:16]}")
    manager.shutdown(wait=False)
    group.shutdown()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replica", type=int, required=True, help="its number, from 0")
    parser.add_argument("--group", choices=sorted(GROUPS), default="p4reduce")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds in each step")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds, of torchft")
    options = parser.parse_args()
    if "TORCHFT_LIGHTHOUSE" not in os.environ:
        parser.error("set TORCHFT_LIGHTHOUSE, as torchft_lighthouse prints it")
    train(options)


if __name__ == "__main__":
    main()
