# SPDX-License-Identifier: Apache-2.0
"""Compares the scorecard's sums with those of processes over the embedded switch.

Each method takes so many steps in three ways: in numpy, on the P4 program in one process as in the
scorecard, and over the embedded switch with a process per rank. Gaps and bytes stand side by side.
Bytes differ where timers repeat frames, and where the last frame of a round has no lanes, whose
result goes out as two halves.

    python -m bench.methods.check [--seed 0] [--ranks 8 8] [--steps 60] [--methods gd lag-wk]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from p4reduce_lab.choice import choose
from rich.console import Console
from rich.table import Table

from bench.methods.entries import ENTRIES
from bench.methods.rank import run_plan
from bench.methods.single import find, in_numpy
from bench.methods.tasks import Task, tasks
from bench.program import SWITCH, Option, read_options, run
from bench.ranks import run_ranks

TIMEOUT = 500.0  # seconds; for all runs of that many ranks


@dataclass(frozen=True)
class Compared:
    """A method's steps in three ways.

    Attributes:
        gaps: in numpy, on the program, over the switch.
        up, down: bytes of all ranks, on the program and over the switch.
    """

    method: str
    task: str
    gaps: tuple[float, float, float]
    up: tuple[int, int]
    down: tuple[int, int]


def over_the_switch(
    todo: Sequence[tuple[str, Task]], steps: int, seed: int, ranks: tuple[int, int], switch: str
) -> list[tuple[float, int, int]]:
    """Run methods on tasks of as many ranks; return gaps, bytes up and bytes down."""
    runs = [{"method": method, "task": task.name, "steps": steps} for method, task in todo]
    with tempfile.TemporaryDirectory(prefix="p4r-") as folder:
        reports = run_ranks(
            choose(switch, "local"),
            todo[0][1].ranks,
            run_plan,
            TIMEOUT,
            seed=seed,
            ranks=ranks,
            runs=runs,
            folder=folder,
        )
    results = []
    for number, (method, task) in enumerate(todo):
        models = [np.array(report[number]["model"]) for report in reports]
        gap = task.gap(ENTRIES[method].models(models))
        first = reports[0][number]
        results.append((gap, sum(first["up"]), sum(first["down"])))
    return results


def compare(
    todo: Sequence[tuple[str, Task]],
    steps: int,
    seed: int,
    ranks: tuple[int, int],
    switch: str = "embedded",
) -> list[Compared]:
    """Take the same steps of each method in three ways; all tasks have the same number of ranks."""
    real = over_the_switch(todo, steps, seed, ranks, switch)
    rows = []
    for (method, task), (gap, up, down) in zip(todo, real, strict=True):
        entry = replace(ENTRIES[method], most=steps)
        way = find(entry, task, seed, target=-1.0)  # all steps
        rows.append(
            Compared(
                method,
                task.name,
                (in_numpy(entry, task), way.gap, gap),
                (sum(way.up), up),
                (sum(way.down), down),
            )
        )
    return rows


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        seed=0,
        ranks=[8, 8],
        steps=60,
        methods=Option(list(ENTRIES), choices=list(ENTRIES)),
        switch=SWITCH,
    )
    ranks = (options.ranks[0], options.ranks[1])
    known = tasks(options.seed, ranks)
    table = Table()
    for head in ("task", "method", "gap in numpy", "on the program", "over the switch"):
        table.add_column(head)
    for head in ("kB up", "over the switch", "kB down", "over the switch"):
        table.add_column(head, justify="right")
    for size in sorted(set(ranks)):
        todo = [
            (method, task)
            for task in known
            if task.ranks == size
            for method in options.methods
            if ENTRIES[method].suits(task)
        ]
        if not todo:
            continue
        for row in compare(todo, options.steps, options.seed, ranks, options.switch):
            kilobytes = (f"{number / 1e3:.1f}" for number in (*row.up, *row.down))
            gaps = (f"{gap:.7g}" for gap in row.gaps)
            table.add_row(row.task, row.method, *gaps, *kilobytes)
    Console(width=140).print(table)


if __name__ == "__main__":
    run(main)
