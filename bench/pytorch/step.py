# SPDX-License-Identifier: Apache-2.0
"""What a bucket costs in Python, and how far a step's communication hides behind its computing.

A network of a million parameters in four buckets or so, trained by DistributedDataParallel with
`allreduce_hook`. Shown are medians of rank 0:

- the CPU time of a bucket in Python's threads: in the hook, which starts the all-reduce, and in the
  thread that completes its future;
- with `--bandwidth`, on Mininet links of so many Mbit/s: a step's computing alone, its buckets
  alone, and the whole step. If all went in parallel, that would be the greater of the two and the
  last bucket, which has nothing left to hide behind. (The forward pass has nothing to hide.)

With `--device MS` each layer also waits as for an accelerator: MS milliseconds in the forward pass
and twice that in the backward pass, so that computing takes no core from ranks and switch.

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
BUCKET_MB = 0.9  # two layers, three in the first one
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

    def hook(state: Any, bucket: Any) -> Any:
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

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()

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
    whole = [timed(step, dist.barrier) for _ in range(STEPS)]
    completed = completing() - before
    count, calls = len(buckets) // STEPS, len(called)
    last = [one.clone() for one in buckets[-count:]]

    def communicate() -> None:
        works = [dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True) for one in last]
        for work in works:
            work.wait()

    with model.no_sync():
        computing = [timed(step, dist.barrier) for _ in range(STEPS)]
    communicating = [timed(communicate, dist.barrier) for _ in range(STEPS)]
    dist.destroy_process_group()
    return {
        "buckets": count,
        "hook": statistics.median(called),
        "completing": completed / calls,
        "computing": statistics.median(computing),
        "communicating": statistics.median(communicating),
        "step": statistics.median(whole),
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
        greater = max(figures["computing"], figures["communicating"])
        bucket = figures["communicating"] / figures["buckets"]
        text.append(
            f"at {bandwidth:g} Mbit/s: computing {figures['computing'] * 1e3:.0f} ms, "
            f"communicating {figures['communicating'] * 1e3:.0f} ms, a step "
            f"{figures['step'] * 1e3:.0f} ms, which is the greater and one bucket "
            f"({bucket * 1e3:.0f} ms) times {figures['step'] / (greater + bucket):.2f}"
        )
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
