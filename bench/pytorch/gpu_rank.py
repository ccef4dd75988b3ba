# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench.pytorch.gpu`: compares bits, or measures times.

Rank 0 writes its figures after each of them, so that a run which is ended leaves what it has.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from p4reduce.tensors.noise import Noise
from p4reduce.torch import hooks
from p4reduce.torch.narrow import LANES, NarrowLanes, block_exponents
from torch.nn.parallel import DistributedDataParallel

from bench.measure import in_turns, timed
from bench.pytorch.over_links import join

WIDTH = 1024  # of the transformer; a layer has about 12.6 million parameters
LAYER = 12.6e6
LONG = (2 << 20) + 1000  # elements: half of them are more than one part of a sum
TIMEOUT = timedelta(seconds=60)  # of a collective
_FAKE = Path(__file__).parents[2] / "tests/pytorch/programs"


class Device:
    """Where tensors are, and waiting for it.

    Args:
        name: "cuda", "cpu", or "fake": the host's memory, staged by the threads of the tests'
            fake accelerator.
        rank: of this process.

    Attributes:
        place: for torch.
        model: for people.
    """

    def __init__(self, name: str, rank: int) -> None:
        self.place = "cuda" if name == "cuda" else "cpu"
        self.model = torch.cuda.get_device_name(0) if name == "cuda" else name
        self._fake: Any = None
        self._staged = True
        if name == "fake":
            sys.path.insert(0, str(_FAKE))
            module = importlib.import_module("fake_accelerator")
            self._fake = module.FakeAccelerator(rank, kernels=False, longest=0.0005)
            module.install(lambda tensor: self._staged, self._fake)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Tensors of the CPU are not the device's."""
        self._staged = False
        try:
            yield
        finally:
            self._staged = True

    def wait(self) -> None:
        """Wait until the device has done all."""
        if self.place == "cuda":
            torch.cuda.synchronize()

    def seconds(self, job: Callable[[], Any]) -> float:
        """Return how long a job takes, with what it leaves to the device."""

        def whole() -> None:
            job()
            self.wait()

        return timed(whole, self.wait)

    def copied(self, job: Callable[[], Any]) -> float | None:
        """Return the bytes that a job copies between host and device; None: nobody counts them."""
        if self._fake is not None:
            before = self._fake.lent
            job()
            lent: float = self._fake.lent - before
            return 2 * lent  # there and back
        if self.place != "cuda":
            return None
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiled:
            job()
            self.wait()
        with tempfile.TemporaryDirectory() as directory:
            trace = Path(directory) / "trace.json"
            profiled.export_chrome_trace(str(trace))
            return copied_bytes(json.loads(trace.read_text()))


def copied_bytes(trace: dict[str, Any]) -> float:
    """Return the bytes that a trace of torch's profiler copies between host and device."""
    return sum(
        float(event["args"]["bytes"])
        for event in trace["traceEvents"]
        if event.get("cat") == "gpu_memcpy"
        and any(way in event["name"] for way in ("HtoD", "DtoH"))
    )


def _in_place(name: str, *arguments: Any) -> Callable[..., Any]:
    def run(tensor: Any, rank: int, size: int) -> Any:
        given = [getattr(dist.ReduceOp, one) if isinstance(one, str) else one for one in arguments]
        getattr(dist, name)(tensor, *given)
        return tensor

    return run


def _into(name: str, length: Callable[[int, int], int]) -> Callable[..., Any]:
    """A collective that fills a tensor whose length is of the other's, and of the ranks."""

    def run(tensor: Any, rank: int, size: int) -> Any:
        found = tensor.new_empty(length(tensor.numel(), size))
        getattr(dist, name)(found, tensor)
        return found

    return run


def _reduce(tensor: Any, rank: int, size: int) -> Any:
    dist.reduce(tensor, 1)
    return tensor if rank == 1 else tensor.new_zeros(1)


def _strided(tensor: Any, rank: int, size: int) -> Any:
    dist.all_reduce(tensor[::2])
    return tensor


def _long(tensor: Any, rank: int, size: int) -> Any:
    whole = tensor.repeat(-(-LONG // tensor.numel()))
    dist.all_reduce(whole[::2] if rank else whole[: len(whole[::2])])
    return whole


def _all_gather(tensor: Any, rank: int, size: int) -> Any:
    parts = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def _gather(tensor: Any, rank: int, size: int) -> Any:
    parts = [torch.empty_like(tensor) for _ in range(size)] if rank == 0 else None
    dist.gather(tensor, parts)
    return torch.cat(parts or [tensor])


def _scatter(tensor: Any, rank: int, size: int) -> Any:
    own = tensor.new_empty(tensor.numel() // size)
    dist.scatter(own, list(tensor.chunk(size)) if rank == 0 else None)
    return own


def _ring(tensor: Any, rank: int, size: int) -> Any:
    other = torch.empty_like(tensor)
    received = dist.irecv(other, (rank - 1) % size)
    dist.isend(tensor, (rank + 1) % size).wait()
    received.wait()
    return other


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all_reduce": _in_place("all_reduce", "SUM"),
    "all_reduce, mean": _in_place("all_reduce", "AVG"),
    "all_reduce, maximum": _in_place("all_reduce", "MAX"),
    "all_reduce, strided": _strided,
    "all_reduce, in parts": _long,
    "reduce": _reduce,
    "broadcast": _in_place("broadcast", 1),
    "all_gather": _all_gather,
    "all_gather_into_tensor": _into("all_gather_into_tensor", lambda length, size: length * size),
    "reduce_scatter": _into("reduce_scatter_tensor", lambda length, size: length // size),
    "all_to_all": _into("all_to_all_single", lambda length, _: length),
    "gather": _gather,
    "scatter": _scatter,
    "send and receive": _ring,
}
BY_GLOO = {"all_reduce, maximum", "all_to_all", "gather", "scatter"}  # it knows no int16
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def compare(device: Device, small: bool) -> Iterator[tuple[str, str]]:
    """Run each collective on the host and on the device; yield what was run, and what differs.

    `small`: few numbers and dtypes, for a tool that slows all down.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in FLOATS[:1] if small else DTYPES:
        generator = torch.Generator().manual_seed(rank)
        numbers = torch.randn(size * (1000 if small else 70_000), generator=generator)
        numbers = numbers.mul(20).clamp(0 if dtype == torch.uint8 else -60, 60).to(dtype)
        for name, run in COLLECTIVES.items():
            if dtype == torch.int16 and name in BY_GLOO:
                continue
            given = numbers.to(device.place, copy=True)
            with device.on_host():
                here = run(numbers.clone(), rank, size)
            there = run(given, rank, size)
            device.wait()
            same = torch.equal(here, there.cpu())
            yield f"{name} of {str(dtype).removeprefix('torch.')}", "" if same else "other bits"
    for lane_format in LANES:
        draw = torch.Generator().manual_seed(7)
        rows = torch.randn(500, lane_format.lanes, generator=draw)
        rows *= torch.logspace(-120, 120, 500, base=2.0)[:, None]
        made = []
        for place in ("cpu", device.place):
            moved = rows.to(place)
            exponents = block_exponents(moved).cpu().numpy().astype(np.uint8)
            lanes = NarrowLanes(lane_format, 2, exponents, Noise(1, 0, 0), torch.device(place))
            encoded = lanes.encode(moved)
            made.append([encoded, lanes.left(moved, encoded), lanes.decode(2 * encoded.short())])
        same = all(torch.equal(here, there.cpu()) for here, there in zip(*made, strict=True))
        yield f"lanes of {lane_format.name.lower()}", "" if same else "other bits"


def bucket(device: Device, size: int, steps: int) -> dict[str, float]:
    """Return medians of a bucket's times, in seconds, and the share that is hidden.

    The bucket has `size` bytes.
    """
    tensor = torch.randn(size // 4, device=device.place)
    matrix = torch.randn(2048, 2048, device=device.place)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    held: list[float] = []

    def together(times: int) -> None:
        began = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        held.append(time.perf_counter() - began)
        compute(times)
        work.wait()

    def seconds(job: Callable[[], Any]) -> float:
        dist.barrier()
        return device.seconds(job)

    summing = median([seconds(partial(together, 0)) for _ in range(steps + 1)][1:])
    host = median(held[1:])
    compute(2)
    once = max(device.seconds(partial(compute, 5)) / 5, 1e-6)
    agreed = torch.tensor([summing / once], device=device.place)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    times = max(round(agreed.item()), 1)
    works = {"alone": partial(compute, times), "both": partial(together, times)}
    found = in_turns({name: partial(seconds, job) for name, job in works.items()}, steps)
    hidden = (summing + median(found["alone"]) - median(found["both"])) / summing
    return {"held": host, "sum": summing, "hidden": hidden}


def train(device: Device, parameters: float, hook: str, steps: int) -> dict[str, float | None]:
    """Return the seconds of a step of a transformer, and its copies by twice the gradient's bytes.

    `hook` is p4reduce's; "": none.
    """
    torch.manual_seed(0)
    width = WIDTH if parameters >= LAYER else 64
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    layers = max(round(parameters / LAYER), 1)
    network = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    # All ranks have made the same parameters: to copy them takes as long as a step.
    model = DistributedDataParallel(network.to(device.place), init_sync=False)
    if hook:
        model.register_comm_hook(hooks.HookState(), getattr(hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(2, 64, width, device=device.place)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    seconds = [device.seconds(step) for _ in range(steps + 1)][1:]
    copied = device.copied(step)
    gradient = 4.0 * sum(one.numel() for one in network.parameters())  # bytes
    return {"seconds": median(seconds), "copied": copied and copied / (2 * gradient)}


def be_rank(
    backend: str,
    store: str,
    what: str,
    device: str,
    figures: str,
    small: bool = False,
    parameters: float = 100e6,
    size: int = 25 << 20,
    steps: int = 3,
) -> dict[str, Any]:
    """What each rank does: finds out `what`, "bits" or "times", and returns its figures.

    Rank 0 writes them to the file `figures` after each one.
    """
    place = Device(device, int(os.environ["RANK"]))
    join(backend, store, TIMEOUT, one_bucket=False)
    found: dict[str, Any] = {"device": place.model, "torch": torch.__version__}

    def keep() -> None:
        if dist.get_rank() == 0:
            # Replaced as a whole: this process may be ended while it writes.
            new = Path(figures).with_suffix(".new")
            new.write_text(json.dumps(found))
            new.replace(figures)

    if what == "bits":
        found |= {"same": [], "differs": []}
        for name, problem in compare(place, small):
            found["differs" if problem else "same"].append(name)
            keep()
    else:
        found["bucket"] = bucket(place, size, steps)
        keep()
        for hook in ("", "int8_hook") if backend == "p4reduce" else ("",):
            found[hook or "float32"] = train(place, parameters, hook, steps)
            keep()
    dist.destroy_process_group()
    return found
