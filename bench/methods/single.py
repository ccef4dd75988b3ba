# SPDX-License-Identifier: Apache-2.0
"""One method on one task, until its gap is small enough or gets no smaller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from p4reduce.methods.in_process import Adder, InProcess, run

from bench.methods.counted import Counted
from bench.methods.entries import Entry
from bench.methods.program import Program
from bench.methods.tasks import Array, Task

TARGET = 1e-4
EACH = 200  # the gap is looked at after each step at first, then after each two-hundredth part
PATIENCE = 2.0  # times as many steps as the least gap took: it will get no further
FIRST = 500  # steps that every method has


@dataclass
class Way:
    """How a method went.

    Attributes:
        steps: when it was stopped.
        gap: then.
        rounds, uploads: of each rank.
        up, down: bytes of each rank, by the counters of the P4 program.
        points: (steps, gap, bytes up and down of all ranks), where it was looked at.
    """

    steps: int = 0
    gap: float = float("inf")
    rounds: list[int] = field(default_factory=list)
    uploads: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    points: list[tuple[int, float, int]] = field(default_factory=list)


def find(entry: Entry, task: Task, seed: int = 0, target: float = TARGET) -> Way:
    """Run a method on the P4 program until the gap is `target` or it gets no further.

    Args:
        entry: the method.
        task: all ranks' parts.
        seed: of the order in which frames come to the switch.
        target: the gap.
    """
    way, program = Way(), Program(task.ranks, seed)
    least = [(float("inf"), 0)]  # the least gap so far, and when

    def look(step: int, models: list[Array]) -> bool:
        way.steps, way.gap = step, task.gap(models)
        way.points.append((step, way.gap, sum(program.bytes_up) + sum(program.bytes_down)))
        if way.gap < 0.99 * least[0][0]:
            least[0] = way.gap, step
        return way.gap <= target or step > max(FIRST, PATIENCE * least[0][1])

    counts = _run(entry, task, program, look)
    way.rounds = [counted["rounds"] for counted in counts]
    way.uploads = [counted["uploads"] for counted in counts]
    way.up, way.down = program.bytes_up, program.bytes_down
    return way


def in_numpy(entry: Entry, task: Task, steps: int) -> float:
    """The gap after so many steps without a switch."""
    gaps = []

    def look(step: int, models: list[Array]) -> bool:
        if step >= steps:
            gaps.append(task.gap(models))
        return step >= steps

    _run(entry, task, None, look)
    return gaps[0]


def _run(
    entry: Entry, task: Task, adder: Adder | None, look: Callable[[int, list[Array]], bool]
) -> list[Counter[str]]:
    """Run a method; `look` gets all ranks' models now and then, and says whether to stop."""

    def work(comm: InProcess) -> Counter[str]:
        counted = Counted(comm)
        over = [False]

        def watch(step: int, model: Array) -> bool:
            if step % max(1, step // EACH):
                return False
            models = comm.confer(model)
            if comm.rank == 0:
                over[0] = look(step, models)
            return bool(comm.confer(over[0])[0])

        entry.work(counted, task, entry.most, watch)
        return Counter(rounds=counted.rounds, uploads=counted.uploads)

    return run(task.ranks, work, adder=adder)
