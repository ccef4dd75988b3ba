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
    Uncompressed,
)
from simulate import Trace, run, spent
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
SYSTEM = "this system"
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


def uncompressed(task: Task, steps: int, share: float) -> tuple[Trace, float]:
    """The run that others are measured against, and the loss at a share of what it gains."""
    dense = run(task, lambda rank: Uncompressed(world_size=task.ranks), steps=steps)
    start = task.loss(task.start())
    return dense, start - share * (start - min(dense.losses))


@dataclass(frozen=True)
class Study:
    """What is run of a task, with error feedback or without, to a loss or for so many steps.

    `dense` is its run without compression. `say` is called with each training that begins.
    """

    task: Task
    dense: Trace
    target: float
    steps: int
    feedback: bool
    say: Callable[[str], None]

    def elements(self, levels: list[int]) -> Iterator[Outcome]:
        """Elements chosen one by one, by the paper's models. A fixed level runs once for all."""
        sweep = {f"T = {level}": self._fixed(level, 1) for level in levels}
        for link, model in ELEMENT_MODELS.items():
            yield self._priced(link, model, UNCOMPRESSED, self.dense, 1)
            for method, trace in sweep.items():
                yield self._priced(link, model, method, trace, 1)
            yield from self._cats(link, model, 1)

    def blocks(self) -> Iterator[Outcome]:
        """Whole blocks, priced in seconds by what the switch's protocol moves."""
        model = switch_link(self.task.ranks)
        yield self._priced(SYSTEM, model, UNCOMPRESSED, self.dense, LANES)
        for level in powers(-(-self.task.dimension // LANES)):
            trace = self._fixed(level, LANES)
            yield self._priced(SYSTEM, model, f"T = {level}", trace, LANES)
        yield from self._cats(SYSTEM, model, LANES)
        yield from self._cats(SYSTEM, model, LANES, Agreement.BLOCKS)

    def _train(self, what: str, make: Callable[[int], Compressor]) -> Trace:
        self.say(f"{self.task.title}: {what}, feedback {self.feedback}")
        return run(self.task, make, target=self.target, steps=self.steps)

    def _fixed(self, level: int, unit: int) -> Trace:
        density = level / -(-self.task.dimension // unit)

        def make(rank: int) -> Compressor:
            return TopK(
                world_size=self.task.ranks,
                unit=unit,
                density=density,
                error_feedback=self.feedback,
            )

        return self._train(f"fixed T = {level}", make)

    def _cats(
        self, link: str, model: CostModel, unit: int, agreement: Agreement = Agreement.OWN
    ) -> Iterator[Outcome]:
        """By the paper's rule; with feedback also by the one that counts on it."""
        kinds: dict[str, type[Cat]] = {CAT: Cat}
        if self.feedback:
            kinds[MEMORY_CAT] = MemoryCat
        for method, kind in kinds.items():

            def make(rank: int, kind: type[Cat] = kind) -> Compressor:
                return kind(
                    world_size=self.task.ranks,
                    unit=unit,
                    cost=model,
                    error_feedback=self.feedback,
                    agreement=agreement,
                    seed=rank,
                )

            name = method + AGREED * (agreement is Agreement.BLOCKS)
            yield self._priced(link, model, name, self._train(f"{name}, {link}", make), unit)

    def _priced(self, link: str, model: CostModel, method: str, trace: Trace, unit: int) -> Outcome:
        if method == UNCOMPRESSED and not isinstance(model, SwitchLink):
            price = model.dense_cost(Scheme.SPARSE.encoding(self.task.dimension, unit))
            paid = price * np.arange(1.0, len(trace.levels) + 1)
        else:
            paid = spent(trace, self.task, model, Scheme.SPARSE, unit)
        reached = trace.steps_to(self.target)
        cost = float(paid[reached - 1]) if reached else None
        steps = reached or len(trace.levels)
        return Outcome(self.task.title, link, method, self.feedback, cost, steps, trace, paid)


def powers(largest: int) -> list[int]:
    """1, 2, 4, … below `largest`."""
    return [1 << power for power in range((largest - 1).bit_length())]
