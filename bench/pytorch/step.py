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

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE

from bench.machine import describe, machine
from bench.ranks import run_ranks

LAYERS = 8
WIDTH = 352  # LAYERS * WIDTH * (WIDTH + 1) = 994,048 parameters
BUCKET_MB = 0.9  # two layers
STEPS = 25
WARM = 5  # DDP sorts its buckets in the first steps
TIMEOUT = 300.0  # seconds
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


def measure(batch: int, device: float, store: Path) -> dict[str, Any]:
    """The figures of this rank; times in seconds. The ranks meet by a file.

    Args:
        batch: rows of a rank's input.
        device: what a layer waits in the forward pass, in milliseconds.
        store: the file.
    """
    import torch
    import torch.distributed as dist
    from p4reduce.torch import hooks
    from p4reduce.torch.threads import next_level
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("p4reduce", f"file://{store}", rank=rank, world_size=size)
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
            result = super().forward(numbers)
            return Waiting.apply(result) if device else result

    network = nn.Sequential(*[Layer(WIDTH, WIDTH) for _ in range(LAYERS)])
    model = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    model.register_comm_hook(hooks.HookState(), hook)
    inputs = torch.randn(batch, WIDTH)

    def step() -> float:
        """Return the seconds of the backward pass."""
        model.zero_grad(set_to_none=False)
        loss = model(inputs).square().mean()
        began = time.perf_counter()
        loss.backward()
        return time.perf_counter() - began

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
    count = len(buckets)
    last = [one.clone() for one in buckets]

    def communicate() -> None:
        works = [dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True) for one in last]
        for work in works:
            work.wait()

    def compute() -> None:
        with model.no_sync():
            alone.append(step())

    whole, computing, communicating, first = [], [], [], []
    backward: list[float] = []
    alone: list[float] = []  # the backward pass without communicating
    for _ in range(STEPS):
        dist.barrier()
        began = time.perf_counter()
        firsts.clear()
        backward.append(step())
        whole.append(time.perf_counter() - began)
        first.append(firsts[0] - began)
        computing.append(timed(compute, dist.barrier))
        communicating.append(timed(communicate, dist.barrier))
    completed = completing() - before
    dist.destroy_process_group()
    return {
        "buckets": count,
        "hook": statistics.median(called),
        "completing": completed / len(called),
        "first": statistics.median(first),
        "computing": statistics.median(computing),
        "communicating": statistics.median(communicating),
        "step": statistics.median(whole),
        "backward": statistics.median(backward),
        "backward_alone": statistics.median(alone),
    }


def timed(what: Any, meet: Any) -> float:
    meet()
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def lines(figures: dict[str, Any], bandwidth: float | None) -> list[str]:
    """The figures, for people."""
    python = figures["hook"] + figures["completing"]
    text = [
        f"{figures['buckets']} buckets; CPU time of a bucket in Python: {python * 1e3:.2f} ms "
        f"({figures['hook'] * 1e3:.2f} in the hook, {figures['completing'] * 1e3:.2f} to complete)"
    ]
    if bandwidth is not None:
        step, computing, sending = (figures[key] for key in ("step", "computing", "communicating"))
        bucket = sending / figures["buckets"]
        bound = 1.15 * max(computing, sending) + bucket
        least = max(figures["first"] + sending, computing + bucket)
        backward, alone = figures["backward"], figures["backward_alone"]
        backward_bound = 1.15 * max(alone, sending) + bucket
        text += [
            f"at {bandwidth:g} Mbit/s: computing {computing * 1e3:.0f} ms, communicating "
            f"{sending * 1e3:.0f} ms in {figures['buckets']} buckets, a step {step * 1e3:.0f} ms",
            f"1.15 times the greater and one bucket: {bound * 1e3:.0f} ms; "
            f"a step takes {step / bound:.2f} times that",
            f"the first bucket is full after {figures['first'] * 1e3:.0f} ms, so DDP can take no "
            f"less than {least * 1e3:.0f} ms; a step takes {step / least:.2f} times that",
            f"the backward pass: {alone * 1e3:.0f} ms alone, {backward * 1e3:.0f} ms with the "
            f"communicating; the bound of the same form is {backward_bound * 1e3:.0f} ms, and it "
            f"takes {backward / backward_bound:.2f} times that",
        ]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", type=float, default=0.0, help="milliseconds of a layer")
    parser.add_argument("--bandwidth", type=float, help="of a link, in Mbit/s; takes root")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        if options.bandwidth is not None:  # by its host's name Gloo would find loopback
            os.environ["GLOO_SOCKET_IFNAME"] = HOST_INTERFACE
        options.report.write_text(
            json.dumps(measure(options.batch, options.device, options.report.with_name("store")))
        )
        return
    try:
        network = "local" if options.bandwidth is None else "mininet"
        limit = [] if options.bandwidth is None else ["--bandwidth", str(options.bandwidth)]
        choice = choose("embedded", network, bandwidth=options.bandwidth)
        script = ["-m", "bench.pytorch.step", "--batch", str(options.batch)]
        script += ["--device", str(options.device), *limit]
        found = run_ranks(choice, options.workers, script, TIMEOUT)[0]
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    print(describe(machine()))
    print("\n".join(lines(found, options.bandwidth)))
    if options.json is not None:
        options.json.write_text(json.dumps({"results": [found]}))


if __name__ == "__main__":
    main()
