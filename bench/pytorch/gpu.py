# SPDX-License-Identifier: Apache-2.0
"""What a GPU's tensors cost, and whether their sums have the bits of the CPU's.

Two ranks share the first GPU. Their network is one that they start themselves, on this machine.

- Bits: each collective and dtype, and narrow lanes, of the GPU's tensors and of the CPU's. One that
  differs ends the run with exit code 1.
- A bucket of 25 MB: how long `all_reduce(async_op=True)` holds the host, how long the sum takes,
  and how much of that hides behind a multiplication that keeps the GPU as long.
- A step of DDP with a transformer of `--parameters`: with p4reduce, with Gloo, and with int8.

    python -m bench.pytorch.gpu [--device cuda] [--parameters 100e6] [--steps 5]

`--device cpu` runs the same without a GPU, to try the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import describe, machine

BUCKET = 25 << 20  # bytes, as DDP's
WIDTH = 1024  # of the transformer; a layer has about 12.6 million parameters
TIMEOUT = 500.0  # seconds


class Device:
    """Tensors on a device, and waiting for it."""

    def __init__(self, name: str) -> None:
        import torch

        self.name = name
        self.is_cpu = name == "cpu"
        self.model = "CPU" if self.is_cpu else torch.cuda.get_device_name(0)

    def wait(self) -> None:
        """Wait until the device has done all."""
        import torch

        if not self.is_cpu:
            torch.cuda.synchronize()

    def seconds(self, job: Callable[[], Any]) -> float:
        """Return how long a job takes, with what it leaves to the device."""
        self.wait()
        began = time.perf_counter()
        job()
        self.wait()
        return time.perf_counter() - began


def differing(device: Device) -> list[str]:
    """Return the collectives whose bits on the device are not those on the CPU."""
    import torch
    import torch.distributed as dist

    rank, size, found = dist.get_rank(), dist.get_world_size(), []
    floats = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for dtype in (*floats, torch.int8, torch.int32, torch.int64):
        generator = torch.Generator().manual_seed(rank)
        numbers = torch.randn(size * 70_000, generator=generator)
        numbers = numbers.mul(20).clamp(-60, 60).to(dtype)  # sums of two fit in 8 bits
        for name, run in _COLLECTIVES.items():
            here, there = numbers.clone(), numbers.to(device.name, copy=True)
            results = run(dist, here, rank, size), run(dist, there, rank, size)
            device.wait()
            if not torch.equal(results[0], results[1].cpu()):
                found.append(f"{name} of {dtype}")
    return found


def differing_lanes(device: Device) -> list[str]:
    """Return the narrow lanes that the device makes of numbers with other bits than the CPU."""
    import numpy as np
    import torch
    from p4reduce.tensors.noise import Noise
    from p4reduce.torch.narrow import LANES, NarrowLanes, block_exponents

    found = []
    for lane_format in LANES:
        draw = torch.Generator().manual_seed(7)
        rows = torch.randn(500, lane_format.lanes, generator=draw)
        rows *= torch.logspace(-120, 120, 500, base=2.0)[:, None]
        made = []
        for place in ("cpu", device.name):
            there = rows.to(place)
            exponents = block_exponents(there).cpu().numpy().astype(np.uint8)
            lanes = NarrowLanes(lane_format, 2, exponents, Noise(1, 0, 0), torch.device(place))
            encoded = lanes.encode(there)
            made.append([encoded, lanes.left(there, encoded), lanes.decode(2 * encoded.short())])
        if not all(torch.equal(here, there.cpu()) for here, there in zip(*made, strict=True)):
            found.append(f"lanes of {lane_format.name}")
    return found


def _all_gather(dist: Any, tensor: Any, rank: int, size: int) -> Any:
    whole = tensor.new_empty(tensor.numel() * size)
    dist.all_gather_into_tensor(whole, tensor)
    return whole


def _reduce_scatter(dist: Any, tensor: Any, rank: int, size: int) -> Any:
    own = tensor.new_empty(tensor.numel() // size)
    dist.reduce_scatter_tensor(own, tensor)
    return own


def _all_to_all(dist: Any, tensor: Any, rank: int, size: int) -> Any:
    others = tensor.new_empty(tensor.numel())
    dist.all_to_all_single(others, tensor)
    return others


def _ring(dist: Any, tensor: Any, rank: int, size: int) -> Any:
    other = tensor.new_empty(tensor.numel())
    received = dist.irecv(other, (rank - 1) % size)
    dist.isend(tensor, (rank + 1) % size).wait()
    received.wait()
    return other


def _in_place(name: str, *arguments: Any) -> Callable[..., Any]:
    def run(dist: Any, tensor: Any, rank: int, size: int) -> Any:
        given = [getattr(dist.ReduceOp, one) if isinstance(one, str) else one for one in arguments]
        getattr(dist, name)(tensor, *given)
        return tensor

    return run


_COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all_reduce": _in_place("all_reduce", "SUM"),
    "all_reduce, mean": _in_place("all_reduce", "AVG"),
    "all_reduce, maximum": _in_place("all_reduce", "MAX"),
    "broadcast": _in_place("broadcast", 1),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send and receive": _ring,
}


def bucket(device: Device, steps: int) -> dict[str, float]:
    """Return medians of one bucket's times, in seconds."""
    import torch
    import torch.distributed as dist

    tensor = torch.randn(BUCKET // 4, device=device.name)
    matrix = torch.randn(2048, 2048, device=device.name)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    held, alone = [], []
    for _ in range(steps + 2):
        dist.barrier()
        began = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        held.append(time.perf_counter() - began)
        work.wait()
        device.wait()
        alone.append(time.perf_counter() - began)
    summing = median(alone[2:])
    once = max(device.seconds(lambda: compute(20)) / 20, 1e-6)
    times = max(round(summing / once), 1)
    computing, both = [], []
    for _ in range(steps):
        dist.barrier()
        computing.append(device.seconds(lambda: compute(times)))

        def together() -> None:
            work = dist.all_reduce(tensor, async_op=True)
            compute(times)
            work.wait()

        dist.barrier()
        both.append(device.seconds(together))
    hidden = (summing + median(computing) - median(both)) / summing
    return {"held": median(held[2:]), "sum": summing, "hidden": hidden}


def step(device: Device, parameters: float, steps: int, hook: str) -> float:
    """Return the median of a step's seconds. "": without a hook."""
    import torch
    from p4reduce.torch import hooks
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = max(round(parameters / 12.6e6), 1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True)
    network = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = DistributedDataParallel(network.to(device.name))
    if hook:
        model.register_comm_hook(hooks.HookState(), getattr(hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(2, 64, WIDTH, device=device.name)

    def once() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return median([device.seconds(once) for _ in range(steps + 2)][2:])


def rank_main(options: argparse.Namespace) -> None:
    """One rank: `--backend` says of which run."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(options.backend)
    device = Device(options.device)
    if not device.is_cpu:
        torch.cuda.set_device(0)
    figures: dict[str, Any] = {"device": device.model}
    if options.backend == "p4reduce":
        figures["differing"] = [*differing(device), *differing_lanes(device)]
    figures["bucket"] = bucket(device, options.steps)
    figures["step"] = step(device, options.parameters, options.steps, "")
    if options.backend == "p4reduce":
        figures["step_int8"] = step(device, options.parameters, options.steps, "int8_hook")
    if dist.get_rank() == 0:
        options.report.write_text(json.dumps(figures))
    dist.destroy_process_group()


def run(backend: str, options: argparse.Namespace, report: Path) -> Any:
    """Run two ranks by torchrun, and return rank 0's figures."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", __file__, "--backend", backend]
    command += ["--device", options.device, "--parameters", str(options.parameters)]
    command += ["--steps", str(options.steps), "--report", str(report)]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    subprocess.run(command, check=True, timeout=TIMEOUT, env={**os.environ, "PYTHONPATH": paths})
    return json.loads(report.read_text())


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures of both runs for people."""
    ours, gloos = figures["p4reduce"], figures["gloo"]
    both = (("p4reduce", ours), ("Gloo", gloos))
    text = [
        f"{ours['device']}, two ranks: " + ("bits differ" if ours["differing"] else "same bits")
    ]
    text += [f"differs: {name}" for name in ours["differing"]]
    for name, one in both:
        each = one["bucket"]
        text.append(
            f"{name}: a bucket of 25 MB holds the host {each['held'] * 1e3:.2f} ms and takes "
            f"{each['sum'] * 1e3:.1f} ms, {each['hidden']:.0%} hidden; a step takes "
            f"{one['step'] * 1e3:.0f} ms"
        )
    return [*text, f"p4reduce, int8: a step takes {ours['step_int8'] * 1e3:.0f} ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend is not None:
        rank_main(options)
        return
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        figures = {name: run(name, options, report) for name in ("p4reduce", "gloo")}
    host = machine()
    print(f"{describe(host)}\n")
    print("\n".join(lines(figures)))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": host, **figures}))
    sys.exit(1 if figures["p4reduce"]["differing"] else 0)


if __name__ == "__main__":
    main()
