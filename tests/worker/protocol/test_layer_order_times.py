# SPDX-License-Identifier: Apache-2.0
"""What a training step gains if first layers' gradients travel first, in virtual time.

The engine in C and the P4 program are real. Links and computing are not: a layer takes that many
milliseconds in the forward pass, and twice that in the backward pass. So the machine's load changes
no figure. The table of docs/pytorch-recipes.md is what this prints.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation, class_slots
from slow_links import Link, SlowLinks

RANKS, LAYERS, BLOCKS, SLOTS = 2, 16, 64, 32
RATE = 12.5e6  # bytes per second of a link: 100 Mbit/s
FRAME = 1102  # bytes of a block
STEPS = 3
SENDING = LAYERS * BLOCKS * FRAME / RATE  # seconds of all gradients


class Training(SlowLinks):
    """Ranks that train in steps.

    Args:
        rng: of the links.
        classes: of the gradients, with `SLOTS` each.
        computing: seconds of a step without communicating.
        by_layer: a layer waits for its own sum. False: each step waits for all sums.
    """

    def __init__(
        self, rng: np.random.Generator, classes: int, computing: float, *, by_layer: bool = True
    ) -> None:
        super().__init__(
            RANKS,
            classes * SLOTS,
            rng,
            up=lambda: Link(rate=RATE),
            down=lambda: Link(rate=RATE),
            urgent=[SLOTS] * (classes - 1),
        )
        self._classes = class_slots(self.slots, self.urgent)
        self._layer = computing / LAYERS / 3
        self._by_layer = by_layer
        self._in_flight: list[dict[int, Collective]] = [{} for _ in range(RANKS)]
        self._called = [0] * RANKS
        self._waits: list[int | None] = [None] * RANKS  # the layer that a rank is to run
        self.ends: list[list[float]] = [[] for _ in range(RANKS)]  # of backward passes

    def run(self) -> float:
        """Return the virtual seconds of a step, once that is steady."""
        for rank in range(RANKS):
            self._forward(rank, 0)
        while min(map(len, self.ends)) < STEPS:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return max((ends[STEPS - 1] - ends[1]) / (STEPS - 2) for ends in self.ends)

    def _forward(self, rank: int, layer: int) -> None:
        needed = [layer] if self._by_layer else range(LAYERS)
        running = self._in_flight[rank]
        if any(one in running and not running[one].done() for one in needed):
            self._waits[rank] = layer
            return
        self._waits[rank] = None
        then = self._forward if layer + 1 < LAYERS else self._iteration
        self._at(self.now + self._layer, lambda: then(rank, layer + 1))

    def _iteration(self, rank: int, layer: int) -> None:
        self._at(self.now + 2 * self._layer, lambda: self._backward(rank, layer - 1))

    def _backward(self, rank: int, layer: int) -> None:
        array = np.full(BLOCKS * 256, layer + 1, np.int32)
        plan = plans.allreduce(array, Operation.SUM, None, array, world_size=RANKS)
        count = len(self._classes)
        priority = count - 1 - layer * count // LAYERS
        own = self._classes[priority]
        call = plan.with_priority(priority)
        self._in_flight[rank][layer] = one = Collective(
            call.call,
            call.source,
            call.target,
            sequence=self._called[rank],
            slots=len(own),
            first_slot=own.start,
            timeout=1e9,
            on_end=lambda _: self._at(self.now, lambda: self._go_on(rank)),
        )
        self._called[rank] += 1
        self.machines[rank].submit(one)
        self._send(rank)
        if layer:
            self._iteration(rank, layer)
            return
        self.ends[rank].append(self.now)
        self._forward(rank, 0)

    def _go_on(self, rank: int) -> None:
        layer = self._waits[rank]
        if layer is not None:
            self._forward(rank, layer)

    @property
    def repeated(self) -> float:
        """The share of frames that timers sent again."""
        counts = [machine.counts for machine in self.machines]
        return sum(one.retransmissions for one in counts) / sum(one.frames_sent for one in counts)


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_step_by_number_of_classes(rng: np.random.Generator, ratio: float) -> None:
    """`ratio`: of communicating to computing. With half of it there is nothing to gain."""
    computing = SENDING / ratio
    ways = {"DDP": Training(rng, 1, computing, by_layer=False)}
    ways |= {f"{classes}": Training(rng, classes, computing) for classes in (1, 2, 4, 8)}
    times = {name: way.run() for name, way in ways.items()}
    least = max(computing, SENDING)
    cells = [f"{seconds * 1e3:.0f} ({seconds / least:.2f})" for seconds in times.values()]
    print(f"| {computing * 1e3:.0f} | {SENDING * 1e3:.0f} | {' | '.join(cells)} |")
    assert min(times.values()) > least
    assert max(way.repeated for way in ways.values()) < 0.02
    assert times["DDP"] == pytest.approx(times["1"], rel=0.02)  # the first layer's sum is the last
    assert times["8"] <= 1.01 * times["4"] <= 1.03 * times["1"]
    if ratio >= 1:
        assert times["8"] < 0.9 * times["1"]
