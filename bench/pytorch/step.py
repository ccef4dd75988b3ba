# SPDX-License-Identifier: Apache-2.0
"""What a bucket costs in Python, and how far a step's communication hides behind its computing.

A network of a million parameters in four buckets or so, trained by DistributedDataParallel with
`allreduce_hook`. Shown are medians of rank 0:

- the CPU time of a bucket in Python's threads: in the hook, which starts the all-reduce, and in the
  thread that completes its future;
- with `--bandwidth`, on Mininet links of that rate: a step's computing alone, its buckets
  alone, and the whole step, measured in turns, as others may use the machine as well. The bound is
  1.15 times the greater of computing and communicating, and one bucket. Two more figures say what
  DDP can reach at all: it has nothing to send until the first bucket is full, and nothing to
  compute while it waits for the last one. The same of the backward pass alone, as a hook has
  nothing to do with the forward pass.

Computing is real, on one thread of each rank, as much as `--batch` rows make. With `--device MS`
each layer also sleeps as if an accelerator computed: MS milliseconds in the forward pass and twice
that in the backward pass. A sleep takes no core and no lock from ranks and switch, so it shows
what the links allow, and nothing of what Python costs.

    python -m bench.pytorch.step [--workers 2] [--batch 64] [--device 0] [--bandwidth 100]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from p4reduce.torch.threads import next_level
from p4reduce_lab.measured.machine import describe, machine
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.measure import in_turns, timed
from bench.program import Option, read_options, run, some
from bench.pytorch.layers import Layer, meet, run_layers

LAYERS = 8
WIDTH = 352  # LAYERS * WIDTH * (WIDTH + 1) = 994,048 parameters
BUCKET_MB = 0.9  # two layers
STEPS = 25
WARM = 5  # DDP sorts its buckets in the first steps


def measure(batch: int, device: float, meeting: list[Any]) -> dict[str, Any]:
    """The figures of this rank; times in seconds.

    `device` is what a layer waits in the forward pass, in milliseconds; `meeting` is `run_layers`'.
    """
    meet(meeting)
    buckets: list[torch.Tensor] = []
    called: list[float] = []  # CPU seconds of the hook's calls
    firsts: list[float] = []  # when a step's first bucket was full

    def hook(state: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            firsts.append(time.perf_counter())
        began = time.thread_time()
        future = hooks.allreduce_hook(state, bucket)
        called.append(time.thread_time() - began)
        buckets.append(bucket.buffer())
        return future

    # Types, and not strings for them: torch looks at a hook's.
    hook.__annotations__ = dict(hooks.allreduce_hook.__annotations__)

    network = nn.Sequential(*[Layer(WIDTH, device) for _ in range(LAYERS)])
    model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    model.register_comm_hook(hooks.HookState(), hook)
    inputs = torch.randn(batch, WIDTH)

    def step() -> float:
        """Return the seconds of the backward pass."""
        model.zero_grad(set_to_none=False)
        return timed(model(inputs).square().mean().backward)

    def completing() -> float:
        """CPU seconds of the thread that completes futures, so far."""
        told: torch.futures.Future[float] = torch.futures.Future()
        next_level().submit(lambda: told.set_result(time.thread_time()))
        return float(told.wait())

    for _ in range(WARM):
        step()
    called.clear()
    buckets.clear()
    before = completing()
    step()
    last = [one.clone() for one in buckets]
    more: dict[str, list[float]] = {"first": [], "backward": [], "backward_alone": []}

    def communicate() -> None:
        works = [dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True) for one in last]
        for work in works:
            work.wait()

    def compute() -> None:
        with model.no_sync():
            more["backward_alone"].append(step())

    def whole() -> float:
        dist.barrier()
        began = time.perf_counter()
        firsts.clear()
        more["backward"].append(step())
        more["first"].append(firsts[0] - began)
        return time.perf_counter() - began

    ways: dict[str, Callable[[], float]] = {
        "step": whole,
        "computing": lambda: timed(compute, dist.barrier),
        "communicating": lambda: timed(communicate, dist.barrier),
    }
    times = in_turns(ways, STEPS) | more
    completed = completing() - before
    dist.destroy_process_group()
    return {
        "buckets": len(last),
        "hook": statistics.median(called),
        "completing": completed / len(called),
        **{name: statistics.median(each) for name, each in times.items()},
    }


def lines(figures: dict[str, Any], bandwidth: float | None) -> str:
    """The figures, for people."""
    count = figures.pop("buckets")
    ms = {name: 1e3 * seconds for name, seconds in figures.items()}
    text = (
        f"{count} buckets; CPU time of a bucket in Python: {ms['hook'] + ms['completing']:.2f} ms "
        f"({ms['hook']:.2f} in the hook, {ms['completing']:.2f} to complete)"
    )
    if bandwidth is None:
        return text
    step, computing, sending = (ms[key] for key in ("step", "computing", "communicating"))
    bucket = sending / count
    bound = 1.15 * max(computing, sending) + bucket
    least = max(ms["first"] + sending, computing + bucket)
    backward, alone = ms["backward"], ms["backward_alone"]
    backward_bound = 1.15 * max(alone, sending) + bucket
    return (
        f"{text}\n"
        f"at {bandwidth:g} Mbit/s: computing {computing:.0f} ms, communicating {sending:.0f} ms in "
        f"{count} buckets, a step {step:.0f} ms\n"
        f"1.15 times the greater and one bucket: {bound:.0f} ms; a step takes {step / bound:.2f} "
        "times that\n"
        f"the first bucket is full after {ms['first']:.0f} ms, so DDP can take no less than "
        f"{least:.0f} ms; a step takes {step / least:.2f} times that\n"
        f"the backward pass: {alone:.0f} ms alone, {backward:.0f} ms with the communicating; the "
        f"bound of the same form is {backward_bound:.0f} ms, and it takes "
        f"{backward / backward_bound:.2f} times that"
    )


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        workers=2,
        batch=64,
        device=Option(0.0, "milliseconds of a layer"),
        bandwidth=Option(None, "of a link, in Mbit/s; takes root", float),
    )
    given = some(options, "batch", "device")
    found = run_layers(measure, options.workers, options.bandwidth, **given)[0]
    print(describe(machine()))
    print(lines(found, options.bandwidth))


if __name__ == "__main__":
    run(main)
