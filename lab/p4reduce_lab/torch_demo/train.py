# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo with PyTorch: ``python -m p4reduce_lab.torch_demo.train BACKEND …``.

It is an ordinary script for DistributedDataParallel: with the backend "p4reduce" it differs from
that with "gloo" by the name, and by the hook where lanes of fewer bits are asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import struct
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from p4reduce_lab.demo.training.data import Digits

RATE = 0.05
MOMENTUM = 0.9
REPORT = 2.0  # seconds between two lines of rank 0 about its progress
LOCAL_STEPS = 20  # to find out how long a step takes without communication
TCP_BYTES_ACKED = 120  # where struct tcp_info of Linux has tcpi_bytes_acked, 64 bits


def network() -> nn.Module:
    """A small convolutional network for images of 8 x 8 pixels: 38,282 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def tcp_bytes() -> int:
    """Return the payload bytes that this process's TCP connections have sent so far."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not str(link.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and (
                    copy.type == socket.SOCK_STREAM
                ):
                    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, TCP_BYTES_ACKED)[0]
        except OSError:
            continue  # closed meanwhile, or no TCP socket
    return total


def switch_bytes() -> int:
    """Return the bytes of whole frames that this rank has sent to the switch; 0 without one."""
    channel = getattr(dist.group.WORLD, "channel", None)
    return 0 if channel is None else int(channel.comm.stats.bytes_sent)


class ProgressLines:
    """Rank 0's lines about the progress of the training."""

    def __init__(self, rank: int, steps: int) -> None:
        self._shown = rank == 0
        self._steps = steps
        self._next = 0.0

    def __call__(self, done: int) -> None:
        """Print the number of steps that are done, if the last line is some time ago."""
        now = time.monotonic()
        if self._shown and (now >= self._next or done == self._steps):
            self._next = now + REPORT
            print(f"step {done} of {self._steps}", flush=True)


def one_step(model: nn.Module, optimiser: torch.optim.Optimizer, images: Any, labels: Any) -> float:
    """Do a step of SGD and return its time in seconds."""
    began = time.perf_counter()
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimiser.step()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--compression", default="none")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    digits = Digits.load(options.data)
    images = torch.from_numpy(digits.train_images).view(-1, 1, 8, 8)
    labels = torch.from_numpy(digits.train_labels)

    model = DistributedDataParallel(network(), bucket_cap_mb=0.1)
    if options.compression != "none" and options.backend == "p4reduce":
        from p4reduce.torch import hooks

        dense = {"int16": hooks.int16_hook, "int8": hooks.int8_hook, "int4": hooks.int4_hook}
        state = hooks.HookState(
            # In 8 bits or fewer the rounding would cost accuracy; int16 has next to none.
            error_feedback=options.compression in ("int8", "int4"),
            compressor=options.compression,
            seed=options.seed,
        )
        model.register_comm_hook(state, dense.get(options.compression, hooks.compressed_hook))
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    batches = torch.Generator().manual_seed(options.seed)  # the same on all ranks
    dist.barrier()
    tcp, switch = tcp_bytes(), switch_bytes()
    began = time.perf_counter()
    seconds = []
    progress = ProgressLines(rank, options.steps)
    for done in range(options.steps):
        progress(done)
        chosen = torch.randint(len(images), (size, options.batch), generator=batches)[rank]
        seconds.append(one_step(model, optimiser, images[chosen], labels[chosen]))
    elapsed = time.perf_counter() - began
    progress(options.steps)
    tcp, switch = tcp_bytes() - tcp, switch_bytes() - switch

    with torch.no_grad():
        test = torch.from_numpy(digits.test_images).view(-1, 1, 8, 8)
        right = model.module(test).argmax(1) == torch.from_numpy(digits.test_labels)
    weights = torch.cat([one.detach().ravel() for one in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    digests: list[Any] = [None] * size
    dist.all_gather_object(digests, digest)

    # What a step takes here alone, while the others do the same: not to be kept.
    with model.no_sync():
        local = [
            one_step(model, optimiser, images[: options.batch], labels[: options.batch])
            for _ in range(LOCAL_STEPS)
        ]
    if rank == 0:
        step = statistics.median(seconds)
        result = {
            "backend": options.backend,
            "accuracy": float(right.float().mean()),
            "steps_per_second": options.steps / elapsed,
            "bytes_a_rank": tcp + switch,
            "waiting_share": max(0.0, 1 - statistics.median(local) / step),
            "parameters": weights.numel(),
            "same_weights": len(set(digests)) == 1,
        }
        options.result.write_text(json.dumps(result, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
