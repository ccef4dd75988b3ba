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

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import p4reduce
import torch
import torch.distributed as dist
from p4reduce.torch import LayerOrder, hooks
from p4reduce_common.rows import markdown_table
from p4reduce_lab.measured.machine import describe, machine
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.measure import drawn, in_turns, median_of, timed
from bench.program import Option, read_options, run, some
from bench.pytorch.layers import Layer, meet, run_layers
from bench.ranks import TIMEOUT

LAYERS = 16
SLOTS = 48  # of a class; the process group of DDP has more
CLASSES = (1, 2, 4, 8)
SEED = 7
DDP = "DDP"


def measure(
    device: float, width: int, turns: int, steps: int, meeting: list[Any]
) -> dict[str, Any]:
    """The figures of this rank; times in seconds.

    `device` is what a layer waits in the forward pass, in milliseconds; `meeting` is `run_layers`'.
    """
    meet(meeting)

    def network() -> nn.Sequential:
        torch.manual_seed(SEED)
        return nn.Sequential(*[Layer(width, device, squash=True) for _ in range(LAYERS)])

    def inner(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    inputs = torch.randn(4, width, generator=torch.Generator().manual_seed(dist.get_rank()))

    def backward(model: Any) -> None:
        model(inputs).square().mean().backward()

    with contextlib.ExitStack() as open_ones:
        comm = open_ones.enter_context(p4reduce.init(slots=SLOTS, timeout=TIMEOUT))
        ways: dict[str, Callable[[], None]] = {}
        orders: dict[str, LayerOrder] = {}
        models: list[nn.Sequential] = []
        comms: list[p4reduce.Communicator] = [comm]
        for classes in CLASSES:
            if classes > 1:
                more = comm.dup(slots=classes * SLOTS, urgent_slots=[SLOTS] * (classes - 1))
                comms.append(open_ones.enter_context(more))
            models.append(network())
            orders[str(classes)] = LayerOrder(models[-1], inner, group=comms[-1])
            ways[str(classes)] = partial(backward, models[-1])
        plain = network()
        megabytes = width * (width + 1) * 4 / (1 << 20)
        ddp = DistributedDataParallel(plain, bucket_cap_mb=megabytes, gradient_as_bucket_view=True)
        ddp.register_comm_hook(hooks.HookState(), hooks.allreduce_hook)
        optimizer = inner(plain.parameters())

        def by_ddp() -> None:
            backward(ddp)
            optimizer.step()
            optimizer.zero_grad()

        ways[DDP] = by_ddp
        layers = [np.ones(width * (width + 1), np.float32) for _ in range(LAYERS)]

        def communicate() -> None:
            handles = [comm.allreduce_async(one, p4reduce.MEAN, out=one) for one in layers]
            for handle in handles:
                handle.wait()

        alone = network()

        def turn(name: str) -> float:
            comm.barrier()
            ways[name]()

            def some_steps() -> None:
                for _ in range(steps):
                    ways[name]()

            took = timed(some_steps) / steps
            if name in orders:
                orders[name].finish()
            return took

        works: dict[str, Callable[[], float]] = {
            **{name: partial(turn, name) for name in ways},
            "computing": lambda: timed(lambda: backward(alone), comm.barrier),
            "communicating": lambda: timed(communicate, comm.barrier),
        }
        # DDP sorts its buckets in the first steps.
        times = in_turns(works, turns, warm_up=1, order=drawn(SEED))
        bits = {
            b"".join(one.detach().numpy().tobytes() for one in model.parameters())
            for model in models
        }
        repeated = [one.stats.retransmissions / one.stats.frames_sent for one in comms]
    dist.destroy_process_group()
    return {"times": times, "same": len(bits) == 1, "repeated": repeated}


def told(reports: list[dict[str, Any]]) -> str:
    """Medians of the slowest rank, in rows for the docs."""
    slowest = {name: median_of(reports, "times", name) for name in reports[0]["times"]}
    computing, sending = slowest.pop("computing"), slowest.pop("communicating")
    rows = []
    for name in (DDP, *map(str, CLASSES)):
        shown = name if name == DDP else f"`LayerOrder`, {name} class{'es' * (name != '1')}"
        gain, share = slowest[DDP] / slowest[name], max(computing, sending) / slowest[name]
        rows.append([shown, f"{slowest[name] * 1e3:.0f} ms", f"{gain:.2f}", f"{share:.2f}"])
    repeated = [max(of) for of in zip(*(one["repeated"] for one in reports), strict=True)]
    shares = ", ".join(f"{share:.1%}" for share in repeated)
    return (
        f"computing {computing * 1e3:.0f} ms, communicating {sending * 1e3:.0f} ms\n"
        + markdown_table(["", "a step", "DDP's time over it", "the least over it"], rows)
        + f"frames that were sent again, by the number of classes: {shares}"
    )


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        workers=4,
        bandwidth=Option(100.0, "of a link, in Mbit/s"),
        device=Option(5.0, "milliseconds of a layer"),
        width=Option(208, "of a layer"),
        turns=Option(5, "of each way to train"),
        steps=Option(5, "of a turn"),
    )
    given = some(options, "device", "width", "turns", "steps")
    reports = run_layers(measure, options.workers, options.bandwidth, **given)
    if not all(report["same"] for report in reports):
        raise SystemExit("the classes give different models")
    print(describe(machine()))
    print(
        f"{options.workers} workers, {options.bandwidth:g} Mbit/s, {LAYERS} layers of width "
        f"{options.width}, {options.device:g} ms; {options.turns} turns of {options.steps} steps"
    )
    print(told(reports))


if __name__ == "__main__":
    run(main)
