# SPDX-License-Identifier: Apache-2.0
"""The scorecard of training methods: `make methods`.

Each method runs until the gap to the optimum is 1e-4 or gets no smaller. Sums go through the
compiled P4 program of the embedded switch, which counts bytes. What a run took is a row of
build/methods/scorecard.json:

- iterations: steps of the method;
- gap: |Σ f_i(θ_i) − F*| of the ranks' models at the end;
- uploads: contributions to a sum that are not all zeros, of all ranks;
- bytes_up, bytes_down: whole frames to and from all ranks, counted by the switch;
- rounds: sums one after the other, of the rank with most of them;
- seconds: a model. A round takes two round trips (one opens the stream, one carries the block) of
  1 ms each, and the busiest rank's bytes go up and come down at 10 Mbit/s.

`python -m bench.methods.check` runs the same over the embedded switch with a process per rank.

    python -m bench.methods.scorecard [--seed 0] [--ranks 24 16] [--methods gd lag-wk]
        [--tasks diabetes] [--most STEPS] [--output build/methods]
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context

from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import describe, machine

from bench.methods.entries import ENTRIES
from bench.methods.picture import draw
from bench.methods.single import HEAD, Row, Way, find
from bench.methods.tasks import tasks
from bench.program import Option, read_options, run
from bench.record import ROOT

OUTPUT = ROOT / "build" / "methods"
AT_ONCE = 2  # processes


def one(seed: int, ranks: tuple[int, int], task: str, method: str, most: int) -> tuple[Row, Way]:
    """Run a method on a task; in a process of its own."""
    found = next(each for each in tasks(seed, ranks) if each.name == task)
    entry = replace(ENTRIES[method], most=min(most, ENTRIES[method].most))
    way = find(entry, found, seed)
    return Row.of(method, found, way), way


def measure(
    todo: Sequence[tuple[str, str]], seed: int, ranks: tuple[int, int], most: int
) -> list[tuple[Row, Way]]:
    """Run methods on tasks, some at a time; return them in the same order."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # matrices are small, and processes share the cores
    done: dict[tuple[str, str], tuple[Row, Way]] = {}
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        begun = time.monotonic()
        waited_for = {
            pool.submit(one, seed, ranks, task, method, most): (task, method)
            for task, method in todo
        }
        for future in as_completed(waited_for):
            task, method = waited_for[future]
            try:
                row, _ = done[task, method] = future.result()
            except ValueError as error:  # its models diverged
                print(f"{task}, {method}: left out, {error}", flush=True)
                continue
            print(
                f"{time.monotonic() - begun:4.0f} s  {row.task}, {row.method}: "
                f"{row.iterations:,} steps, gap {row.gap:.2g}",
                flush=True,
            )
    return [done[each] for each in todo if each in done]


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        seed=Option(0, "of data and of their order"),
        ranks=Option([24, 16], "of synthetic and of real tasks"),
        methods=Option(list(ENTRIES), choices=list(ENTRIES)),
        tasks=Option(list[str](), "some of them; default: all", str),
        most=Option(10**9, "give up after so many steps"),
        output=OUTPUT,
    )
    ranks = (options.ranks[0], options.ranks[1])
    if len(options.ranks) != 2 or not all(2 <= number <= 50 for number in ranks):
        raise LabError(f"--ranks {ranks[0]} {ranks[1]}: 2 to 50 ranks are needed")
    known = tasks(options.seed, ranks)
    names = [task.name for task in known]
    for name in options.tasks or []:
        if name not in names:
            raise LabError(f"--tasks {name}: there are {', '.join(names)}")
    todo = [
        (task.name, method)
        for task in known
        if task.name in (options.tasks or names)
        for method in options.methods
        if ENTRIES[method].suits(task)
    ]
    print(describe(machine()))
    done = measure(todo, options.seed, ranks, options.most)
    rows = [row for row, _ in done]
    print(markdown_table(HEAD, [row.cells() for row in rows]))
    options.output.mkdir(parents=True, exist_ok=True)
    told = json.dumps([asdict(row) for row in rows], indent=1)
    (options.output / "scorecard.json").write_text(told + "\n")
    draw(done, options.output / "scorecard.png")
    print(f"{options.output / 'scorecard.json'}, {options.output / 'scorecard.png'}")


if __name__ == "__main__":
    run(main)
