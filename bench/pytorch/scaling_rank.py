# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench.pytorch.scaling`: trains the convolutional network, and reports.

A *stream* draws batches of 16 images. A step takes the next batch of each stream, and a rank has
one stream or more. So the samples of a step depend on the streams, and not on the ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from p4reduce.torch.large_batch import linear_rate, warm_up
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from bench.pytorch.accuracy_rank import Task, cnn_task
from bench.pytorch.over_links import in_one_bucket, join

BATCH = 16  # samples of a stream
RATE = 0.00625  # for one stream
MOST_RATE = 0.05  # with larger ones not all seeds reach the target
MOMENTUM = 0.9
WARM_UP = 10  # steps


@dataclass(frozen=True)
class Trained:
    """A training: its steps, the accuracy then, and seconds without looks at the test data.

    `step_seconds` is the median step.
    """

    steps: int
    accuracy: float
    seconds: float
    step_seconds: float


def train(
    model: nn.Module,
    task: Task,
    seed: int,
    mine: Sequence[int],
    streams: int,
    most_steps: int,
    *,
    to_target: bool,
    meet: Callable[[], object] = lambda: None,
) -> Trained:
    """Train, with the rate by the linear rule and a warm-up.

    Args:
        model: whose gradients are averaged over all ranks, where there are several.
        task, seed: the data, and of the batches.
        mine, streams: the streams of this rank, and the number of all.
        most_steps: end after this number of steps.
        to_target: end at the task's accuracy, which is looked at after each step.
        meet: called when a step begins, to wait for the other ranks.
    """
    rate = min(linear_rate(RATE, BATCH * streams, BATCH), MOST_RATE)
    optimiser = torch.optim.SGD(model.parameters(), rate, momentum=MOMENTUM)
    schedule = warm_up(optimiser, WARM_UP, RATE)
    draws = [torch.Generator().manual_seed(1000 * seed + stream) for stream in mine]
    times, accuracy = [], 0.0
    for _ in range(most_steps):
        batches = [task.batch(draw) for draw in draws]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        meet()
        began = time.perf_counter()
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
        times.append(time.perf_counter() - began)
        schedule.step()
        with torch.no_grad():
            inputs, answers = task.test
            found = getattr(model, "module", model)(inputs).argmax(1)
            accuracy = float((found == answers).float().mean())
        if to_target and accuracy >= task.target:
            break
    return Trained(len(times), accuracy, sum(times), statistics.median(times))


def emulated(streams: int, seed: int, most_steps: int) -> Trained:
    """The same in one process: the same batches and rates, and nothing is sent."""
    task = cnn_task(seed)
    torch.manual_seed(seed)
    return train(
        task.network(False), task, seed, range(streams), streams, most_steps, to_target=True
    )


def parameters() -> int:
    """Of the network."""
    return sum(one.numel() for one in cnn_task(0).network(False).parameters())


def train_rank(
    backend: str, store: str, streams: int, compute: float, steps: int, to_target: bool, seed: int
) -> dict[str, float]:
    """What each rank does: trains; computing takes `compute` seconds for a stream's batch.

    Whatever else the cores do: what computing takes less is slept before the sum. "late" is the
    share of the steps whose computing took longer.
    """
    join(backend, store)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = cnn_task(seed)
    torch.manual_seed(seed)
    model = in_one_bucket(task.network(False))
    mine = range(rank, streams, ranks)
    late, due = 0, 0.0

    def begin() -> None:
        nonlocal due
        dist.barrier()
        due = time.perf_counter() + compute * len(mine)

    def hold(group, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations
        nonlocal late
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        else:
            late += 1
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(None, hold)
    trained = train(model, task, seed, mine, streams, steps, to_target=to_target, meet=begin)
    dist.destroy_process_group()
    return {**asdict(trained), "late": late / trained.steps}
