# SPDX-License-Identifier: Apache-2.0
"""The experiments of docs/experiments.md: `python experiments/run.py` (some minutes, two cores).

Writes pictures, tables (tables.md) and every step (steps.csv) to build/experiments. With --docs the
tables also go into docs/experiments.md and the pictures beside it.
"""

from __future__ import annotations

import os

# Many small matrix products: threads would only wait for each other. Before numpy is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parent.parent))  # for bench

import numpy as np  # noqa: E402
import report  # noqa: E402
import study  # noqa: E402
from over_switch import METHODS, RADIO_METHOD, compressor  # noqa: E402
from p4reduce.compression import Cat, Compressor, CostModel, Scheme  # noqa: E402
from p4reduce_lab.errors import Interrupted  # noqa: E402
from p4reduce_lab.processes.foreground import raise_on_signals, run_through  # noqa: E402
from p4reduce_lab.progress import LongWork  # noqa: E402
from simulate import run as train  # noqa: E402
from simulate import spent  # noqa: E402
from tasks import TASKS, Network, Task  # noqa: E402

from bench.pages import DOCS, IMAGES, put_text, table  # noqa: E402
from bench.program import Option, read_options, run  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = DOCS / "experiments.md"


@dataclass(frozen=True)
class Plan:
    """What is run for one task.

    Attributes:
        levels: fixed levels of the sweep over elements. The two that fill one packet of each
            packet model are among them.
        dense_steps: of the uncompressed run.
        steps: at most, of the others.
        feedback: which of the two regimes.
        blocks: whether to run the choice of blocks as well.
        switch_steps: of the runs over the switch; 0: none.
    """

    levels: list[int]
    dense_steps: int
    steps: int
    feedback: tuple[bool, ...] = (False, True)
    blocks: bool = True
    switch_steps: int = 0


Say = Callable[[str], None]
TARGET = 0.9
PLANS = {
    "cancer": Plan(sorted([9, *study.powers(496, 1, 2), 287]), 60, 1500, blocks=False),
    "text": Plan(sorted([*study.powers(5000, 1, 2), 245]), 60, 400, switch_steps=30),
    "digits": Plan(sorted([*study.powers(5000, 1, 2), 250]), 200, 400, (True,), switch_steps=100),
    "parity": Plan(sorted([9, *study.powers(2145, 1, 2), 267]), 60, 400, (True,), blocks=False),
    "wide": Plan(sorted([*study.powers(5000, 1, 2), 240]), 200, 400, (True,)),
}
ACCURACY_SEEDS = 3


@contextmanager
def training_progress(total: int, output: Path) -> Iterator[Say]:
    """Give what says which training runs, and counts it when the next one begins.

    Args:
        total: how many trainings there are.
        output: where pictures and tables go at the end.
    """
    begun = itertools.count()
    kept = f"only {output / 'switch-*.json'} are kept"
    with LongWork("trainings", total, kept=lambda: kept) as work:

        def say(text: str) -> None:
            work.to(next(begun))
            work.now(text)

        yield say
        work.to(next(begun))


def trainings(tasks: list[str], with_switch: bool) -> int:
    """How many trainings there are for some tasks; those of a switch's run count as one."""
    number = 0
    for name in tasks:
        plan, task = PLANS[name], TASKS[name]()
        levels = study.powers(-(-task.dimension // study.LANES), 1, 2)
        for feedback in plan.feedback:
            number += study.element_runs(plan.levels, feedback)
            number += study.block_runs(levels, feedback) if plan.blocks else 0
        number += 1 if plan.switch_steps and with_switch else 0
    number += len(Scheme) * len(study.ELEMENT_MODELS) if "cancer" in tasks else 0
    return number + ((len(METHODS) + 2) * ACCURACY_SEEDS if "digits" in tasks else 0)


def compare(name: str, plan: Plan, share: float, say: Say) -> tuple[str, list[study.Outcome]]:
    """One task's sweeps and CAT runs; also a sentence on the target."""
    task = TASKS[name]()
    dense = study.uncompressed_run(task, plan.dense_steps)
    start = task.loss(task.start())
    target = study.target_loss(dense, start, share)
    outcomes: list[study.Outcome] = []
    for feedback in plan.feedback:
        outcomes += study.elements(task, plan.levels, target, dense, feedback, plan.steps, say)
        if plan.blocks:
            levels = study.powers(-(-task.dimension // study.LANES), 1, 2)
            outcomes += study.blocks(task, levels, target, dense, feedback, plan.steps, say)
    text = (
        f"- {task.title}: {task.dimension:,} parameters, loss {start:.4f} at the start, "
        f"{min(dense.losses):.4f} after {plan.dense_steps} uncompressed steps, target {target:.4f} "
        f"(uncompressed: {dense.steps_to(target)} steps)."
    )
    return text, outcomes


def made_by(method: str, task: Task) -> Callable[[int], Compressor]:
    """Maker of one rank's compressor, with feedback."""
    return lambda rank: compressor(method, task, rank, True)


def accuracies(steps: int, say: Say) -> str:
    """Test accuracy of the network at the end of a full run, over several seeds."""
    rows, reference = [], None
    for name, longer in (*((name, 1) for name in METHODS), (RADIO_METHOD, 2), (RADIO_METHOD, 4)):
        finals, shares = [], []
        for seed in range(ACCURACY_SEEDS):
            say(f"accuracy: {name}, seed {seed}")
            task = Network(seed)
            trace = train(task, made_by(name, task), steps=longer * steps)
            finals.append(100 * trace.accuracy)
            unit = compressor(name, task, 0, True).unit
            encoding = Scheme.SPARSE.encoding(task.dimension, unit)
            paid = np.mean(np.array(trace.levels), axis=1)
            bits = np.minimum(encoding.bits(paid), encoding.dense_bits)
            shares.append(longer * float(bits.mean()) / encoding.dense_bits)
        mean = float(np.mean(finals))
        reference = mean if reference is None else reference
        rows.append(
            [
                name,
                str(longer * steps),
                ", ".join(f"{final:.2f}" for final in finals),
                f"{mean:.2f}",
                f"{mean - reference:+.2f}",
                f"{100 * float(np.mean(shares)):.3g} %",
            ]
        )
    head = [
        "method",
        "steps",
        "accuracy by seed (%)",
        "mean",
        "difference",
        "payload bits sent per rank",
    ]
    return table(head, rows)


def schemes(share: float, say: Say) -> str:
    """CAT over each of its schemes without feedback, on the logistic task with real data."""
    task = TASKS["cancer"]()
    dense = study.uncompressed_run(task, PLANS["cancer"].dense_steps)
    target = study.target_loss(dense, task.loss(task.start()), share)
    rows = []
    for scheme in Scheme:
        cells = []
        for link, model in study.ELEMENT_MODELS.items():
            say(f"{task.title}: CAT over {scheme.value}, {link}")

            def make(rank: int, scheme: Scheme = scheme, model: CostModel = model) -> Cat:
                return Cat(
                    world_size=4,
                    unit=1,
                    cost=model,
                    scheme=scheme,
                    error_feedback=False,
                    seed=rank,
                )

            trace = train(task, make, steps=PLANS["cancer"].steps, target=target)
            reached = trace.steps_to(target)
            paid = spent(trace, task, model, scheme, 1)
            level = np.median(trace.levels)
            cells.append(
                f"{report.number(float(paid[reached - 1]))} ({reached} steps, T {level:.0f})"
                if reached
                else f"not in {len(paid)} steps (T {level:.0f})"
            )
        rows.append([scheme.value, *cells])
    return table(["scheme", *(f"{link} (bits)" for link in study.ELEMENT_MODELS)], rows)


def over_switch(name: str, steps: int, output: Path, switch: str, say: Say) -> list[dict[str, Any]]:
    """Four processes, a switch and a controller; what rank 0 counted.

    Raises:
        subprocess.CalledProcessError: a process failed; its output is on the terminal.
        EndedError: it was not through in 20 minutes.
    """
    say(f"{name}: {steps} steps over the switch with each of {len(METHODS)} methods")
    file = output / f"switch-{name}.json"
    launcher = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "4"]
    worker = [sys.executable, str(ROOT / "experiments" / "over_switch.py")]
    worker += ["--task", name, "--output", str(file)]
    command = [*launcher, "--switch", switch, "--", *worker, "--steps", str(steps)]
    run_through(command, 1200.0, ROOT, capture=False).check_returncode()
    results: list[dict[str, Any]] = json.loads(file.read_text())
    return results


def switch_table(name: str, results: list[dict[str, Any]], steps: int) -> str:
    """Counted traffic beside that of the same run in this process by the cost model."""
    rows = []
    dense = results[0]["bytes_sent"] + results[0]["bytes_received"]
    for result in results:
        task = TASKS[name]()
        trace = train(task, made_by(result["method"], task), steps=steps)
        counted = result["bytes_sent"] + result["bytes_received"]
        rows.append(
            [
                result["method"],
                f"{result['bytes_sent'] / steps:,.0f}",
                f"{result['bytes_received'] / steps:,.0f}",
                f"{dense / counted:.1f}",
                f"{result['retransmissions']}",
                f"{8 * max(result['bytes_sent'], result['bytes_received']) / study.BANDWIDTH:.2f}",
                f"{result['seconds']:.1f}",
                f"{result['losses'][-1]:.4f}",
                f"{trace.losses[-1]:.4f}",
                f"{100 * result['accuracy']:.2f}",
            ]
        )
    head = [
        "method",
        "bytes up per step",
        "bytes down per step",
        "fewer bytes",
        "retransmissions",
        "s at 10 Mbit/s (bytes only)",
        "s as run",
        "final loss",
        "same, summed by numpy",
        "accuracy (%)",
    ]
    return f"{results[0]['steps'][-1]} steps of {TASKS[name]().title}:\n\n" + table(head, rows)


def into_docs(sections: dict[str, str], drawn: list[Path]) -> None:
    """Put the tables of docs/experiments.md in their places, and pictures beside it."""
    for name, body in sections.items():
        put_text(PAGE, name, body)
    IMAGES.mkdir(exist_ok=True)
    for picture in drawn:
        shutil.copy(picture, IMAGES / f"experiments-{picture.name}")


def pictures(
    outcomes: list[study.Outcome], runs: dict[str, list[dict[str, Any]]], output: Path
) -> list[Path]:
    """Draw what there is; the files."""
    drawn = [
        *report.plot_grid(outcomes, True, output / "bits.png", seconds=False),
        *report.plot_grid(outcomes, False, output / "bits-no-feedback.png", seconds=False),
        *report.plot_grid(outcomes, True, output / "seconds.png", seconds=True),
        *report.plot_levels(outcomes, output / "levels.png"),
    ]
    if runs:
        drawn.append(output / "switch.png")
        report.plot_switch({TASKS[name]().title: one for name, one in runs.items()}, drawn[-1])
    return drawn


def redraw(output: Path) -> list[Path]:
    """The pictures again, from what an earlier run has left."""
    outcomes = report.read_steps(output / "steps.csv")
    files = {name: output / f"switch-{name}.json" for name in PLANS}
    runs = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return pictures(outcomes, runs, output)


def main() -> None:
    """Run what the command line asks for."""
    given = read_options(
        __doc__,
        to_json=False,
        docs="docs/experiments.md",
        output=ROOT / "build" / "experiments",
        tasks=Option(list(PLANS), choices=sorted(TASKS)),
        switch=Option("auto", choices=("auto", "embedded", "bmv2", "none")),
        target=Option(TARGET, "share of the uncompressed gain to reach"),
        redraw=Option(False, "only the pictures, from an earlier run's output"),
    )
    output: Path = given.output
    output.mkdir(parents=True, exist_ok=True)
    if given.redraw:
        drawn = redraw(output)
        if given.docs:
            into_docs({}, drawn)
        return
    raise_on_signals()
    try:
        with training_progress(trainings(given.tasks, given.switch != "none"), output) as say:
            run_experiments(given, output, say)
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)


def run_experiments(given: argparse.Namespace, output: Path, say: Say) -> None:
    """Run what the command line asks for; pictures, tables and steps are written at the end."""
    targets, outcomes = [], []
    for name in given.tasks:
        target, some = compare(name, PLANS[name], given.target, say)
        targets.append(target)
        outcomes += some
    sections = {
        "targets": "\n".join(targets) + "\n",
        "comparison": report.short_comparison(outcomes),
    }
    every = report.comparison(outcomes)
    report.write_steps(outcomes, output / "steps.csv")
    if "cancer" in given.tasks:
        sections["schemes"] = schemes(given.target, say)
    if "digits" in given.tasks:
        sections["accuracy"] = accuracies(PLANS["digits"].steps, say)
    runs: dict[str, list[dict[str, Any]]] = {}
    if given.switch != "none":
        for name in given.tasks:
            if steps := PLANS[name].switch_steps:
                runs[name] = over_switch(name, steps, output, given.switch, say)
        if runs:
            sections["switch"] = "\n".join(
                switch_table(name, results, PLANS[name].switch_steps)
                for name, results in runs.items()
            )
    drawn = pictures(outcomes, runs, output)
    (output / "tables.md").write_text("\n".join([*sections.values(), every]))
    if given.docs:
        into_docs(sections, drawn)
    print("\n".join(sections.values()))
    print(f"Pictures, tables.md and steps.csv are in {output}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main)
