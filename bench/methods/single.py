# SPDX-License-Identifier: Apache-2.0
"""One method on one task, until its gap is small enough or gets no smaller: a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from p4reduce.methods.in_process import Adder, InProcess, run
from p4reduce.methods.result import Result

from bench.methods.entries import Entry
from bench.methods.program import Program
from bench.methods.tasks import Array, Task

TARGET = 1e-4
EACH = 200  # the gap is looked at after each step at first, then after each two-hundredth part
PATIENCE = 2.0  # times as many steps as the least gap took: it will get no further
FIRST = 2000  # steps that every method has
HOLD = 3  # looks in a row, where models differ
ROUND_TRIP = 1e-3  # seconds
TRIPS_A_ROUND = 2
BANDWIDTH = 1e7  # bit/s


@dataclass
class Way:
    """How far a method went, and what that took.

    Attributes:
        steps: when it had arrived: where models differ, when the gap was small and stayed so.
        calls: of `watch` until then.
        gap: then.
        rounds, uploads: sums and uploads of each rank until then.
        up, down: bytes of each rank until then, by the counters of the P4 program.
        points: (steps, gap, bytes up and down of all ranks), where it was looked at.
    """

    steps: int = 0
    calls: int = 0
    gap: float = float("inf")
    rounds: list[int] = field(default_factory=list)
    uploads: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    points: list[tuple[int, float, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A method on a task; `scorecard.py` says what the columns are."""

    method: str
    task: str
    ranks: int
    iterations: int
    gap: float
    uploads: int
    bytes_up: int
    bytes_down: int
    rounds: int
    seconds: float

    @property
    def arrived(self) -> bool:
        """Whether the gap is as small as it was to be."""
        return self.gap <= TARGET

    @classmethod
    def of(cls, method: str, task: Task, way: Way) -> Row:
        """Return the row of a run."""
        rounds = max(way.rounds)
        busiest = max(u + d for u, d in zip(way.up, way.down, strict=True))
        seconds = rounds * TRIPS_A_ROUND * ROUND_TRIP + 8 * busiest / BANDWIDTH
        counts = (sum(way.uploads), sum(way.up), sum(way.down))
        return cls(method, task.name, task.ranks, way.steps, way.gap, *counts, rounds, seconds)

    def cells(self) -> list[str]:
        """Return it as text; a gap that is too large is in parentheses."""
        gap = f"{self.gap:.2g}"
        return [
            self.task,
            self.method,
            f"{self.iterations:,}",
            gap if self.arrived else f"({gap})",
            f"{self.uploads:,}",
            f"{self.bytes_up / 1e6:.3g}",
            f"{self.bytes_down / 1e6:.3g}",
            f"{self.rounds:,}",
            f"{self.seconds:.3g}",
        ]


HEAD = ("task", "method", "steps", "gap", "uploads", "MB up", "MB down", "rounds", "seconds")


def find(entry: Entry, task: Task, seed: int = 0, target: float = TARGET) -> Way:
    """Run a method on the P4 program until the gap is `target` or it gets no further.

    Where the ranks' models differ, Σ f_i(θ_i) can pass by F* on its way. So the gap has to stay for
    `HOLD` looks, and what counts is the first of them. `seed` is of the order in which frames come
    to the switch.
    """
    program = Program(task.ranks, seed)
    points: list[tuple[int, float, int]] = []
    seen: list[Way] = []  # at the latest looks
    least = [(float("inf"), 0)]  # the least gap that stayed so far, and when

    def at(step: int, calls: int, models: list[Array]) -> Way:
        up, down = program.bytes_up, program.bytes_down
        return Way(step, calls, task.gap(models), up=up, down=down, points=points)

    def look(step: int, calls: int, models: list[Array]) -> bool:
        seen.append(at(step, calls, models))
        points.append((step, seen[-1].gap, sum(seen[-1].up) + sum(seen[-1].down)))
        together = all(np.array_equal(model, models[0]) for model in models)
        del seen[: -1 if together else -HOLD]
        stays = max(way.gap for way in seen) if together or len(seen) == HOLD else float("inf")
        if stays < 0.99 * least[0][0]:
            least[0] = stays, step
        arrived = stays <= target
        if not arrived and step > max(FIRST, PATIENCE * least[0][1]):
            del seen[:-1]  # given up, here
            return True
        return arrived

    ends = _run(entry, task, program, look)
    first = ends[0]
    if first.reason == "watch":
        way = seen[0]
    else:
        way = at(first.steps, len(first.history), entry.models([end.model for end in ends]))
    way.rounds = [int(end.sums_by[way.calls - 1]) for end in ends]
    way.uploads = [int(end.uploads_by[way.calls - 1]) for end in ends]
    return way


def in_numpy(entry: Entry, task: Task) -> float:
    """The gap after all steps without a switch."""
    ends = _run(entry, task, None, lambda _step, _calls, _models: False)
    return task.gap(entry.models([end.model for end in ends]))


Look = Callable[[int, int, list[Array]], bool]
"""Gets the step, the number of calls so far, and each rank's model; True: stop."""


def _run(entry: Entry, task: Task, adder: Adder | None, look: Look) -> list[Result]:
    """Run a method; `look` says now and then whether to stop."""

    def work(comm: InProcess) -> Result:
        calls = 0

        def watch(step: int, model: Array) -> bool:
            nonlocal calls
            calls += 1
            if calls % max(1, calls // EACH):
                return False
            models = comm.confer(model)
            mine = comm.rank == 0 and look(step, calls, entry.models(models))
            return comm.confer(mine)[0]

        return entry.work(comm, task, entry.most, watch)

    return run(task.ranks, work, adder=adder)
