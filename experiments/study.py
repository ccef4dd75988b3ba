# SPDX-License-Identifier: Apache-2.0
"""CAT against a sweep of fixed levels, for each task and each price of a link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from p4reduce.compression import (
    Affine,
    Agreement,
    Cat,
    Compressor,
    CostModel,
    MemoryCat,
    Packets,
    Payload,
    Scheme,
    SwitchLink,
    TopK,
)
from simulate import Trace, run, spent, uncompressed
from tasks import Task

BANDWIDTH, ROUND_TRIP = 1e7, 1e-3
RADIO = 250e3
"""Bits a second: of the limited link of the switch and Ethernet models, and of IEEE 802.15.4."""

ELEMENT_MODELS: dict[str, CostModel] = {
    "payload": Payload(),
    "affine": Affine(),
    "Ethernet packets": Packets.ethernet(),
    "IEEE 802.15.4": Packets.ieee802154(),
}
LANES = 256
UNCOMPRESSED = "uncompressed"
CAT, MEMORY_CAT, AGREED = "CAT", "CAT with memory", ", blocks agreed"


@dataclass(frozen=True)
class Outcome:
    """One run on one link.

    Attributes:
        task, link, method, feedback: what was run.
        cost: to the target loss, a rank's share, bits or seconds by the link; None: not reached.
        steps: to the target, or all that were run.
        trace: the run.
        paid: cost after each step.
    """

    task: str
    link: str
    method: str
    feedback: bool
    cost: float | None
    steps: int
    trace: Trace
    paid: np.ndarray

    @property
    def fixed(self) -> bool:
        """Whether it belongs to the sweep that CAT is compared with."""
        return self.method.startswith("T = ")


def switch_link(ranks: int) -> SwitchLink:
    """The limited link on which all-reduce over the switch is priced in seconds."""
    return SwitchLink(ranks, BANDWIDTH, ROUND_TRIP)


def target_loss(dense: Trace, start: float, share: float) -> float:
    """The loss at which `share` of what the uncompressed run gains has been gained."""
    return start - share * (start - min(dense.losses))


def _outcome(
    task: Task,
    link: str,
    model: CostModel,
    method: str,
    feedback: bool,
    trace: Trace,
    target: float,
    unit: int,
) -> Outcome:
    if method == UNCOMPRESSED and not isinstance(model, SwitchLink):
        price = model.dense_cost(Scheme.SPARSE.encoding(task.dimension, unit))
        paid = price * np.arange(1.0, len(trace.levels) + 1)
    else:
        paid = spent(trace, task, model, Scheme.SPARSE, unit)
    reached = trace.steps_to(target)
    cost = float(paid[reached - 1]) if reached else None
    steps = reached or len(trace.levels)
    return Outcome(task.title, link, method, feedback, cost, steps, trace, paid)


def elements(
    task: Task,
    levels: list[int],
    target: float,
    dense: Trace,
    feedback: bool,
    steps: int,
    say: Callable[[str], None],
) -> Iterator[Outcome]:
    """Elements chosen one by one, priced by the paper's models. A fixed level runs once for all."""
    sweep = {}
    for level in levels:
        say(f"{task.title}: fixed T = {level}, feedback {feedback}")
        sweep[level] = run(task, _topk(task, level, 1, feedback), target=target, steps=steps)
    for link, model in ELEMENT_MODELS.items():
        yield _outcome(task, link, model, UNCOMPRESSED, feedback, dense, target, 1)
        for level, trace in sweep.items():
            yield _outcome(task, link, model, f"T = {level}", feedback, trace, target, 1)
        for method, kind in kinds(feedback):
            say(f"{task.title}: {method}, {link}, feedback {feedback}")
            trace = run(task, _cat(kind, task, model, 1, feedback), target=target, steps=steps)
            yield _outcome(task, link, model, method, feedback, trace, target, 1)


def blocks(
    task: Task,
    levels: list[int],
    target: float,
    dense: Trace,
    feedback: bool,
    steps: int,
    say: Callable[[str], None],
) -> Iterator[Outcome]:
    """Whole blocks, priced in seconds by what the switch's protocol moves."""
    link, name = switch_link(task.ranks), "this system"
    yield _outcome(task, name, link, UNCOMPRESSED, feedback, dense, target, LANES)
    for level in levels:
        say(f"{task.title}: fixed {level} blocks, feedback {feedback}")
        trace = run(task, _topk(task, level, LANES, feedback), target=target, steps=steps)
        yield _outcome(task, name, link, f"T = {level}", feedback, trace, target, LANES)
    for agreement, suffix in ((Agreement.OWN, ""), (Agreement.BLOCKS, AGREED)):
        for method, kind in kinds(feedback):
            say(f"{task.title}: {method}{suffix} on blocks, feedback {feedback}")
            make = _cat(kind, task, link, LANES, feedback, agreement)
            trace = run(task, make, target=target, steps=steps)
            yield _outcome(task, name, link, method + suffix, feedback, trace, target, LANES)


def element_runs(levels: list[int], feedback: bool) -> int:
    """How many trainings `elements` does."""
    return len(levels) + len(ELEMENT_MODELS) * len(kinds(feedback))


def block_runs(levels: list[int], feedback: bool) -> int:
    """How many trainings `blocks` does."""
    return len(levels) + 2 * len(kinds(feedback))


def kinds(feedback: bool) -> list[tuple[str, type[Cat]]]:
    """The paper's rule; with feedback also the one that counts on it."""
    return [(CAT, Cat), (MEMORY_CAT, MemoryCat)] if feedback else [(CAT, Cat)]


def _topk(task: Task, level: int, unit: int, feedback: bool) -> Callable[[int], Compressor]:
    units = -(-task.dimension // unit)
    return lambda rank: TopK(
        world_size=task.ranks, unit=unit, density=level / units, error_feedback=feedback
    )


def _cat(
    kind: type[Cat],
    task: Task,
    model: CostModel,
    unit: int,
    feedback: bool,
    agreement: Agreement = Agreement.OWN,
) -> Callable[[int], Compressor]:
    return lambda rank: kind(
        world_size=task.ranks,
        unit=unit,
        cost=model,
        error_feedback=feedback,
        agreement=agreement,
        seed=rank,
    )


def powers(largest: int, smallest: int = 1, factor: int = 4) -> list[int]:
    """smallest, times factor, … below `largest`."""
    result = []
    while smallest < largest:
        result.append(smallest)
        smallest *= factor
    return result


def uncompressed_run(task: Task, steps: int) -> Trace:
    """The run that all others are measured against."""
    return run(task, uncompressed(task.ranks), steps=steps)
