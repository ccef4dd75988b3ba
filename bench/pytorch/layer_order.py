# SPDX-License-Identifier: Apache-2.0
"""What a training step gains if the gradients of the first layers travel first.

A network of equal layers on Mininet links. Each layer sleeps as if an accelerator computed,
`--device` milliseconds in the forward pass and twice that in the backward pass, so that computing
takes no core from ranks and switch. Three ways to train it, and `LayerOrder` with several numbers
of classes:

- DistributedDataParallel: a step waits for all gradients (`allreduce_hook`, buckets of one layer);
- `LayerOrder` with one class: a layer waits for its own gradient, and these travel in the order of
  the backward pass, the last layer's first;
- `LayerOrder` with more: first layers first.

The ways take turns in one run, some steps each, in a random order that is the same on all ranks. A
step's time is that between the ends of two backward passes. Beside them are the times of computing
and of communicating alone, and the least that a step can take: the greater of the two.

    python -m bench.pytorch.layer_order [--workers 4] [--bandwidth 100] [--device 5] [--width 208]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE

from bench.machine import describe, machine
from bench.ranks import run_ranks

LAYERS = 16
SLOTS = 48  # of a class; the process group of DDP has more
CLASSES = (1, 2, 4, 8)
SEED = 7
TIMEOUT = 300.0  # seconds
DDP = "DDP"
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


def measure(device: float, width: int, turns: int, steps: int, store: Path) -> dict[str, Any]:
    """The figures of this rank; times in seconds. The ranks meet by a file.

    Args:
        device: what a layer waits in the forward pass, in milliseconds.
        width: of a layer, which has width * (width + 1) parameters.
        turns: of each way to train.
        steps: of a turn.
        store: the file.
    """
    import contextlib

    import numpy as np
    import p4reduce
    import torch
    import torch.distributed as dist
    from p4reduce.torch import LayerOrder, hooks
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("p4reduce", f"file://{store}", rank=rank, world_size=size)

    class Waiting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, numbers: Any) -> Any:
            time.sleep(device / 1e3)
            return numbers.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(2 * device / 1e3)
            return gradient

    class Layer(nn.Linear):
        def forward(self, numbers: Any) -> Any:
            return Waiting.apply(super().forward(numbers).tanh())

    def network() -> nn.Sequential:
        torch.manual_seed(SEED)
        return nn.Sequential(*[Layer(width, width) for _ in range(LAYERS)])

    def inner(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    inputs = torch.randn(4, width, generator=torch.Generator().manual_seed(rank))

    def backward(model: Any) -> None:
        model(inputs).square().mean().backward()

    with contextlib.ExitStack() as open_ones:
        comm = open_ones.enter_context(p4reduce.init(slots=SLOTS, timeout=TIMEOUT))
        ways: dict[str, Callable[[], None]] = {}
        ends: dict[str, Callable[[], None]] = {}
        models: dict[str, Any] = {}
        comms: list[p4reduce.Communicator] = [comm]
        for classes in CLASSES:
            if classes > 1:
                more = comm.dup(slots=classes * SLOTS, urgent_slots=[SLOTS] * (classes - 1))
                comms.append(open_ones.enter_context(more))
            name, model = f"{classes}", network()
            models[name] = model
            order = LayerOrder(model, inner, group=comms[-1])
            ways[name], ends[name] = functools.partial(backward, model), order.finish
        plain = network()
        megabytes = width * (width + 1) * 4 / (1 << 20)
        ddp = DistributedDataParallel(plain, bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
        ddp.register_comm_hook(hooks.HookState(), hooks.allreduce_hook)
        optimizer = inner(plain.parameters())

        def by_ddp() -> None:
            backward(ddp)
            optimizer.step()
            optimizer.zero_grad()

        ways[DDP], ends[DDP] = by_ddp, lambda: None
        layers = [np.ones(width * (width + 1), np.float32) for _ in range(LAYERS)]

        def communicate() -> None:
            handles = [comm.allreduce_async(one, p4reduce.MEAN, out=one) for one in layers]
            for handle in handles:
                handle.wait()

        alone = network()

        def turn(name: str) -> None:
            ways[name]()
            began = time.perf_counter()
            for _ in range(steps):
                ways[name]()
            times[name].append((time.perf_counter() - began) / steps)
            ends[name]()

        works: dict[str, Callable[[], object]] = {
            **{name: functools.partial(turn, name) for name in ways},
            "computing": lambda: backward(alone),
            "communicating": communicate,
        }
        times: dict[str, list[float]] = {name: [] for name in works}

        rng = np.random.default_rng(SEED)  # the same on all ranks
        for number in range(turns + 1):
            for index in rng.permutation(len(works)):
                name = list(works)[index]
                comm.barrier()
                began = time.perf_counter()
                works[name]()
                if name not in ways:
                    times[name].append(time.perf_counter() - began)
            if not number:
                for some in times.values():
                    some.clear()  # DDP sorts its buckets in the first steps
        bits = {
            b"".join(one.detach().numpy().tobytes() for one in model.parameters())
            for model in models.values()
        }
        repeated = [one.stats.retransmissions / one.stats.frames_sent for one in comms]
    dist.destroy_process_group()
    return {"times": times, "same": len(bits) == 1, "repeated": repeated}


def table(reports: list[dict[str, Any]]) -> list[str]:
    """Medians of the slowest rank, in rows for the docs."""
    slowest = {
        name: statistics.median(
            map(max, zip(*(one["times"][name] for one in reports), strict=True))
        )
        for name in reports[0]["times"]
    }
    computing, sending = slowest.pop("computing"), slowest.pop("communicating")
    least = max(computing, sending)
    text = [
        f"computing {computing * 1e3:.0f} ms, communicating {sending * 1e3:.0f} ms",
        "| | a step | DDP's time over it | the least over it |",
        "|---|---|---|---|",
    ]
    for name in (DDP, *map(str, CLASSES)):
        shown = name if name == DDP else f"`LayerOrder`, {name} class{'es' * (name != '1')}"
        gain, share = slowest[DDP] / slowest[name], least / slowest[name]
        text.append(f"| {shown} | {slowest[name] * 1e3:.0f} ms | {gain:.2f} | {share:.2f} |")
    repeated = [max(of) for of in zip(*(one["repeated"] for one in reports), strict=True)]
    shares = ", ".join(f"{share:.1%}" for share in repeated)
    text.append(f"frames that were sent again, by the number of classes: {shares}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bandwidth", type=float, default=100, help="of a link, in Mbit/s")
    parser.add_argument("--device", type=float, default=5.0, help="milliseconds of a layer")
    parser.add_argument("--width", type=int, default=208, help="of a layer")
    parser.add_argument("--turns", type=int, default=5, help="of each way to train")
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = HOST_INTERFACE  # by its host's name it finds loopback
        numbers = (options.device, options.width, options.turns, options.steps)
        report = measure(*numbers, options.report.with_name("store"))
        options.report.write_text(json.dumps(report))
        return
    names = ("--device", "--width", "--turns", "--steps")
    given = (options.device, options.width, options.turns, options.steps)
    script = ["-m", "bench.pytorch.layer_order"]
    script += [text for pair in zip(names, map(str, given), strict=True) for text in pair]
    try:
        choice = choose("embedded", "mininet", bandwidth=options.bandwidth)
        reports = run_ranks(choice, options.workers, script, TIMEOUT)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    if not all(report["same"] for report in reports):
        sys.exit("the classes give different models")
    print(describe(machine()))
    print(
        f"{options.workers} workers, {options.bandwidth:g} Mbit/s, {LAYERS} layers of width "
        f"{options.width}, {options.device:g} ms; {options.turns} turns of {options.steps} steps"
    )
    print("\n".join(table(reports)))
    if options.json is not None:
        options.json.write_text(json.dumps({"results": reports}))


if __name__ == "__main__":
    main()
