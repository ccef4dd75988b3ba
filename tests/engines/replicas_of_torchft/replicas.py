# SPDX-License-Identifier: Apache-2.0
"""Four replicas of torchft over the switch, some of which die: for `test_torchft.py`.

    python replicas.py --deaths 20:1 40:0 --steps 80

Each replica is a forked process with a store of its own. One that is killed is started again.
Survivors wait for it a few steps later, so that it is back before the next one dies. Prints a line
of JSON: each replica's weights, loss, and how many replicas took part in each step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from managed import manager_of
from p4reduce.torch.ft import ProcessGroupP4Reduce
from torch import nn
from torchft import DistributedDataParallel, Optimizer

REPLICAS = 4
WITHOUT = 5  # steps that the survivors do without the victim
TIMEOUT = timedelta(seconds=60)
DEADLINE = 240.0  # seconds


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(32, 10, generator=generator)
    return inputs, torch.sin(inputs[:, :2].sum(dim=1, keepdim=True))


def train(number: int, life: int, deaths: dict[int, int], steps: int, ready: Any) -> dict[str, Any]:
    torch.manual_seed(number + 10 * life)  # the first step gives all of them one's weights
    network = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    inner = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupP4Reduce(TIMEOUT)
    manager = manager_of(group, store, number, network, inner, TIMEOUT)
    model, optimizer = DistributedDataParallel(manager, network), Optimizer(manager, inner)
    took_part = {}
    with ready.get_lock():
        ready.value += 1
    while (step := manager.current_step()) < steps:
        returned = REPLICAS + sum(step >= death + WITHOUT for death in deaths)
        _wait(ready, returned)
        optimizer.zero_grad()
        rank = manager.participating_rank() or 0  # None while it gets the others' weights
        loss = nn.functional.mse_loss(*_outputs(model, 1000 * step + rank))
        if life == 0 and deaths.get(step) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if manager.current_step() > step:
            took_part[step] = manager.num_participants()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(*_outputs(network, -seed)).item() for seed in range(1, 9)]
    weights = b"".join(one.detach().numpy().tobytes() for one in network.parameters())
    manager.shutdown(wait=False)
    group.shutdown()
    digest = hashlib.sha256(weights).hexdigest()
    return {"weights": digest, "loss": sum(losses) / 8, "took_part": took_part}


def _outputs(network: nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = batch(seed)
    return network(inputs), targets


def _wait(ready: Any, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while ready.value < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ready.value} replicas have begun, of {count}")
        time.sleep(0.01)


def run(number: int, life: int, *others: Any) -> None:
    *arguments, results = others
    results.put((number, train(number, life, *arguments)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaths", nargs="*", default=[], metavar="STEP:REPLICA")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    deaths = {int(step): int(replica) for step, replica in (t.split(":") for t in options.deaths)}
    torch.set_num_threads(1)
    context = get_context("fork")
    ready, results = context.Value("i", 0), context.SimpleQueue()

    def start(number: int, life: int) -> Any:
        arguments = (number, life, deaths, options.steps, ready, results)
        process = context.Process(target=run, args=arguments, daemon=True)
        process.start()
        return process

    lives = [0] * REPLICAS
    processes = [start(number, 0) for number in range(REPLICAS)]
    deadline = time.monotonic() + DEADLINE
    while any(process.exitcode != 0 for process in processes):
        for number, process in enumerate(processes):
            if process.exitcode == -signal.SIGKILL:
                lives[number] += 1
                processes[number] = start(number, lives[number])
            elif process.exitcode:
                sys.exit(f"replica {number} ended with {process.exitcode}")
        if time.monotonic() > deadline:
            sys.exit("the replicas do not end")
        time.sleep(0.01)
    told = dict(results.get() for _ in range(REPLICAS))
    print(json.dumps({"lives": lives, "replicas": [told[n] for n in range(REPLICAS)]}))


if __name__ == "__main__":
    main()
