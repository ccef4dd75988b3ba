# SPDX-License-Identifier: Apache-2.0
"""Runs of one task with one compressor a rank, summed in this process or by a communicator.

The process-local sum stands in for the network where only what a *modelled* link would charge is
asked for: what is sent, and so the loss, does not depend on who adds it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from p4reduce.compression import (
    CompressedAllreduce,
    Compressor,
    CostModel,
    Scheme,
    SwitchLink,
    nonzero_blocks,
)
from tasks import Task, Vector


@dataclass
class Trace:
    """One run, step by step.

    Attributes:
        levels: T of each step and rank.
        alphas: mean of the ranks' alpha; NaN where a method has none.
        steps, losses: where the loss was measured.
        masks: which blocks each rank sent, one array a step, if blocks were the unit.
        proposed: numbers that were all-reduced beforehand in each step, for the ranks to agree.
        accuracy: at the end.
        moved: bytes counted by the communicator before the first step and after each; over the
            switch only.
    """

    levels: list[list[int]] = field(default_factory=list)
    alphas: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    proposed: int = 0
    accuracy: float = float("nan")
    moved: list[int] = field(default_factory=list)

    def steps_to(self, target: float) -> int | None:
        """Steps until the loss was first measured at or below the target."""
        for step, loss in zip(self.steps, self.losses, strict=True):
            if loss <= target:
                return step
        return None


def run(
    task: Task,
    make: Callable[[int], Compressor],
    *,
    steps: int | None = None,
    target: float | None = None,
) -> Trace:
    """All ranks in lockstep in this process, until the target or `steps`."""
    compressors = [make(rank) for rank in range(task.ranks)]
    blocks = compressors[0].unit == compressors[0].lanes
    x, trace = task.start(), Trace()
    for step in range(steps or task.steps):
        gradients = [task.gradient(rank, x, step) for rank in range(task.ranks)]
        pairs = list(zip(compressors, gradients, strict=True))
        wanted = [compressor.propose("x", gradient) for compressor, gradient in pairs]
        agreed = np.sum(np.array(wanted), axis=0) if wanted[0] is not None else None
        trace.proposed = agreed.size if agreed is not None else 0
        sent = [compressor.compress("x", gradient, agreed) for compressor, gradient in pairs]
        total = sent[0].values.copy()
        for one in sent[1:]:
            total += one.values
        for compressor in compressors:
            compressor.decompress("x", total)
        x = task.update(x, total / np.float32(task.ranks))
        trace.levels.append([one.level for one in sent])
        trace.alphas.append(float(np.mean([np.nan if o.alpha is None else o.alpha for o in sent])))
        if blocks:
            lanes = compressors[0].lanes
            trace.masks.append(np.array([nonzero_blocks(one.values, lanes) for one in sent]))
        if _measure(task, x, step, trace, target):
            break
    trace.accuracy = task.accuracy(x)
    return trace


def run_rank(
    task: Task, rank: int, reduce: CompressedAllreduce, steps: int, moved: Callable[[], int]
) -> Trace:
    """One rank of a run over a communicator; the same arithmetic as `run`."""
    x, trace = task.start(), Trace()
    trace.moved.append(moved())
    for step in range(steps):
        x = task.update(x, reduce.mean(task.gradient(rank, x, step), "x"))
        trace.moved.append(moved())
        sent = reduce.latest["x"]
        trace.levels.append([sent.level])
        trace.alphas.append(float("nan") if sent.alpha is None else sent.alpha)
        _measure(task, x, step, trace, None)
    trace.accuracy = task.accuracy(x)
    return trace


def _measure(task: Task, x: Vector, step: int, trace: Trace, target: float | None) -> bool:
    """Whether the run is over: the target reached, or the loss beyond recovery."""
    loss = task.loss(x)
    trace.steps.append(step + 1)
    trace.losses.append(loss)
    return (target is not None and loss <= target) or not loss < 100


def spent(trace: Trace, task: Task, cost: CostModel, scheme: Scheme, unit: int) -> np.ndarray:
    """What a rank has paid after each step of a run: the mean over the ranks, in the model's unit.

    `scheme` says how the run's messages are encoded, and `unit` is that of its choices.
    """
    encoding = scheme.encoding(task.dimension, unit)
    if isinstance(cost, SwitchLink):
        first = 0.0
        if trace.proposed:
            first = cost.dense_cost(Scheme.SPARSE.encoding(trace.proposed, 256))
        seconds = [first + float(cost.seconds(cost.traffic_of(mask))) for mask in trace.masks]
        return np.cumsum(seconds)
    levels = np.array(trace.levels)
    # Where naming the elements costs more than sending all of them, a sender sends all.
    prices = np.minimum(cost.cost(np.maximum(levels, 1), encoding), cost.dense_cost(encoding))
    prices[levels == 0] = 0.0
    if trace.proposed:
        prices = prices + cost.dense_cost(Scheme.SPARSE.encoding(trace.proposed))
    return np.cumsum(prices.mean(axis=1))
