# SPDX-License-Identifier: Apache-2.0
"""Compares the scorecard's sums with those of processes over the embedded switch.

Each method takes so many steps in three ways: in numpy, on the P4 program in one process as in the
scorecard, and over the embedded switch with a process per rank. Gaps and bytes stand side by side.
Bytes differ where timers repeat frames, and where the last frame of a round has no lanes, whose
result goes out as two halves.

    python -m bench.methods.check [--seed 0] [--ranks 8 8] [--steps 60] [--methods gd lag-wk]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.methods._communicator import nobody

from bench.methods.entries import ENTRIES
from bench.methods.program import SLOTS
from bench.methods.single import find, in_numpy
from bench.methods.tasks import Task, tasks
from bench.program import Option, Row, read_options, run, tell
from bench.ranks import TIMEOUT, run_ranks


class Counting:
    """A rank's communicator that counts bytes up and down, of groups too."""

    def __init__(self, comm: p4reduce.Communicator, moved: npt.NDArray[np.int64]) -> None:
        self._comm, self._moved = comm, moved
        self.rank, self.size = comm.rank, comm.size

    def allreduce(
        self, array: npt.NDArray[Any], *, name: str | None = None, precision: str | None = None
    ) -> npt.NDArray[Any]:
        """As of the communicator."""
        before = self._bytes()
        total = self._comm.allreduce(array, name=name, precision=precision)
        self._moved += self._bytes() - before
        return total

    def _bytes(self) -> npt.NDArray[np.int64]:
        stats = self._comm.stats
        return np.array([stats.bytes_sent, stats.bytes_received])

    def split(
        self, color: int | None, key: int = 0, *, slots: int | None = None
    ) -> Counting | None:
        """As of the communicator."""
        group = self._comm.split(color, key, slots=slots)
        return None if group is None else Counting(group, self._moved)

    def close(self) -> None:
        """As of the communicator."""
        self._comm.close()


def run_plan(seed: int, ranks: list[int], steps: int, todo: list[list[str]]) -> list[Any]:
    """What a rank does: methods on tasks; returns each model, with the rank's bytes up and down."""
    by_name = {task.name: task for task in tasks(seed, (ranks[0], ranks[1]))}
    results = []
    with p4reduce.init(timeout=TIMEOUT, slots=SLOTS) as comm:
        for method, task in todo:
            moved = np.zeros(2, np.int64)
            end = ENTRIES[method].work(Counting(comm, moved), by_name[task], steps, nobody)
            results.append([end.model.tolist(), *moved.tolist()])
    return results


def compare(
    todo: Sequence[tuple[str, Task]], steps: int, seed: int, ranks: tuple[int, int]
) -> list[Row]:
    """Take the same steps of each method in three ways; all tasks have the same number of ranks.

    "gaps" are in numpy, on the program and over the switch; "up" and "down" are bytes of all ranks,
    on the program and over the switch.
    """
    plan = [(method, task.name) for method, task in todo]
    given = {"seed": seed, "ranks": ranks, "steps": steps, "todo": plan}
    reports = run_ranks(run_plan, todo[0][1].ranks, **given)  # type: ignore[arg-type]
    rows: list[Row] = []
    for (method, task), found in zip(todo, zip(*reports, strict=True), strict=True):
        models, up, down = zip(*found, strict=True)
        entry = replace(ENTRIES[method], most=steps)
        way = find(entry, task, seed, target=-1.0)  # all steps
        gap = task.gap(entry.models([np.array(model) for model in models]))
        rows.append(
            {
                "task": task.name,
                "method": method,
                "gaps": (in_numpy(entry, task), way.gap, gap),
                "up": (sum(way.up), sum(up)),
                "down": (sum(way.down), sum(down)),
            }
        )
    return rows


def main() -> None:
    options = read_options(
        __doc__,
        seed=0,
        ranks=[8, 8],
        steps=60,
        methods=Option(list(ENTRIES), choices=list(ENTRIES)),
    )
    ranks = (options.ranks[0], options.ranks[1])
    known = tasks(options.seed, ranks)
    rows: list[Row] = []
    for size in sorted(set(ranks)):
        todo = [
            (method, task)
            for task in known
            if task.ranks == size
            for method in options.methods
            if ENTRIES[method].suits(task)
        ]
        for row in compare(todo, options.steps, options.seed, ranks) if todo else ():
            places = ("in_numpy", "on_the_program", "over_the_switch")
            shown = {f"gap_{place}": gap for place, gap in zip(places, row["gaps"], strict=True)}
            for way in ("up", "down"):
                for place, octets in zip(places[1:], row[way], strict=True):
                    shown[f"kb_{way}_{place}"] = octets / 1e3
            rows.append({"task": row["task"], "method": row["method"], **shown})
    tell(options, rows)


if __name__ == "__main__":
    run(main)
