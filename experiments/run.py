# SPDX-License-Identifier: Apache-2.0
"""The experiments of docs/experiments.md: `python experiments/run.py` (some minutes, two cores).

Writes pictures and tables (tables.md) to build/experiments. With --docs the tables also go into
docs/experiments.md and the pictures beside it.
"""

from __future__ import annotations

import os

# Many small matrix products: threads would only wait for each other. Before numpy is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import pickle  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parent.parent))  # for bench

import numpy as np  # noqa: E402
import report  # noqa: E402
import study  # noqa: E402
from over_switch import METHODS, RADIO_METHOD, compressor  # noqa: E402
from p4reduce.compression import Cat, Compressor, Scheme  # noqa: E402
from p4reduce_common.rows import markdown_table  # noqa: E402
from p4reduce_lab.errors import Interrupted  # noqa: E402
from p4reduce_lab.processes.foreground import raise_on_signals, run_through  # noqa: E402
from p4reduce_lab.progress import LongWork  # noqa: E402
from simulate import run as train  # noqa: E402
from simulate import spent  # noqa: E402
from tasks import TASKS, Network, Task  # noqa: E402

from bench.pages import DOCS, IMAGES, put_text  # noqa: E402
from bench.program import Option, read_options, run  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = DOCS / "experiments.md"
OUTCOMES = "outcomes.pickle"  # for --redraw


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
    "cancer": Plan(sorted([9, *study.powers(496), 287]), 60, 1500, blocks=False),
    "text": Plan(sorted([*study.powers(5000), 245]), 60, 400, switch_steps=30),
    "digits": Plan(sorted([*study.powers(5000), 250]), 200, 400, (True,), switch_steps=100),
    "parity": Plan(sorted([9, *study.powers(2145), 267]), 60, 400, (True,), blocks=False),
    "wide": Plan(sorted([*study.powers(5000), 240]), 200, 400, (True,)),
}
ACCURACY_SEEDS = 3


def trainings(tasks: list[str], with_switch: bool) -> int:
    """How many trainings there are for some tasks; those of a switch's run count as one."""
    number = 0
    for name in tasks:
        plan, task = PLANS[name], TASKS[name]()
        blocks = len(study.powers(-(-task.dimension // study.LANES)))
        for feedback in plan.feedback:
            kinds = 1 + feedback
            number += len(plan.levels) + len(study.ELEMENT_MODELS) * kinds
            number += blocks + 2 * kinds if plan.blocks else 0
        number += 1 if plan.switch_steps and with_switch else 0
    number += len(Scheme) * len(study.ELEMENT_MODELS) if "cancer" in tasks else 0
    return number + ((len(METHODS) + 2) * ACCURACY_SEEDS if "digits" in tasks else 0)


def compare(name: str, plan: Plan, share: float, say: Say) -> tuple[str, list[study.Outcome]]:
    """One task's sweeps and CAT runs; also a sentence on the target."""
    task = TASKS[name]()
    dense, target = study.uncompressed(task, plan.dense_steps, share)
    outcomes: list[study.Outcome] = []
    for feedback in plan.feedback:
        one = study.Study(task, dense, target, plan.steps, feedback, say)
        outcomes += one.elements(plan.levels)
        outcomes += one.blocks() if plan.blocks else ()
    text = (
        f"- {task.title}: {task.dimension:,} parameters, loss {task.loss(task.start()):.4f} at the "
        f"start, {min(dense.losses):.4f} after {plan.dense_steps} uncompressed steps, target "
        f"{target:.4f} (uncompressed: {dense.steps_to(target)} steps)."
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
    head = ("method", "steps", "accuracy by seed (%)", "mean", "difference",
            "payload bits sent per rank")  # fmt: skip
    return markdown_table(head, rows)


def schemes(share: float, say: Say) -> str:
    """CAT over each of its schemes without feedback, on the logistic task with real data."""
    task, plan = TASKS["cancer"](), PLANS["cancer"]
    _, target = study.uncompressed(task, plan.dense_steps, share)
    rows = []
    for scheme in Scheme:
        cells = []
        for link, model in study.ELEMENT_MODELS.items():
            say(f"{task.title}: CAT over {scheme.value}, {link}")
            given: dict[str, Any] = {"cost": model, "scheme": scheme, "error_feedback": False}

            def make(rank: int, given: dict[str, Any] = given) -> Cat:
                return Cat(world_size=4, unit=1, seed=rank, **given)

            trace = train(task, make, steps=plan.steps, target=target)
            reached = trace.steps_to(target)
            paid = spent(trace, task, model, scheme, 1)
            level = f"T {np.median(trace.levels):.0f}"
            cost = f"not in {len(paid)} steps ({level})"
            if reached:
                cost = f"{report.number(float(paid[reached - 1]))} ({reached} steps, {level})"
            cells.append(cost)
        rows.append([scheme.value, *cells])
    return markdown_table(["scheme", *(f"{link} (bits)" for link in study.ELEMENT_MODELS)], rows)


def over_switch(name: str, steps: int, output: Path, switch: str, say: Say) -> list[dict[str, Any]]:
    """Four processes, a switch and a controller; what rank 0 counted.

    Raises subprocess.CalledProcessError, EndedError: a process failed, or took 20 minutes.
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
    task = TASKS[name]()
    dense = results[0]["bytes_sent"] + results[0]["bytes_received"]
    for result in results:
        trace = train(task, made_by(result["method"], task), steps=steps)
        up, down = result["bytes_sent"], result["bytes_received"]
        rows.append(
            [
                result["method"],
                f"{up / steps:,.0f}",
                f"{down / steps:,.0f}",
                f"{dense / (up + down):.1f}",
                f"{result['retransmissions']}",
                f"{8 * max(up, down) / study.BANDWIDTH:.2f}",
                f"{result['seconds']:.1f}",
                f"{result['losses'][-1]:.4f}",
                f"{trace.losses[-1]:.4f}",
                f"{100 * result['accuracy']:.2f}",
            ]
        )
    head = ("method", "bytes up per step", "bytes down per step", "fewer bytes", "retransmissions",
            "s at 10 Mbit/s (bytes only)", "s as run", "final loss", "same, summed by numpy",
            "accuracy (%)")  # fmt: skip
    return f"{results[0]['steps'][-1]} steps of {task.title}:\n\n" + markdown_table(head, rows)


def pictures(output: Path, docs: bool) -> None:
    """Draw what a run has left in its folder; `docs`: and copy them beside the page."""
    outcomes = pickle.loads((output / OUTCOMES).read_bytes())
    kept = {name: output / f"switch-{name}.json" for name in PLANS}
    runs = {
        TASKS[name]().title: json.loads(file.read_text())
        for name, file in kept.items()
        if file.exists()
    }
    names = ("bits", "bits-no-feedback", "seconds", "levels", "switch")
    bits, without, seconds, levels, switch = files = [output / f"{name}.png" for name in names]
    for file in files:
        file.unlink(missing_ok=True)
    report.plot_grid(outcomes, True, bits, seconds=False)
    report.plot_grid(outcomes, False, without, seconds=False)
    report.plot_grid(outcomes, True, seconds, seconds=True)
    report.plot_levels(outcomes, levels)
    if runs:
        report.plot_switch(runs, switch)
    for file in files if docs else ():
        if file.exists():
            shutil.copy(file, IMAGES / f"experiments-{file.name}")


def main() -> None:
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
    if given.redraw:
        pictures(output, given.docs)
        return
    output.mkdir(parents=True, exist_ok=True)
    results = [output / OUTCOMES, *(output / f"switch-{name}.json" for name in PLANS)]
    for file in results:  # of an earlier run
        file.unlink(missing_ok=True)
    raise_on_signals()
    begun = itertools.count()
    number = trainings(given.tasks, given.switch != "none")
    try:
        with LongWork("trainings", number, kept=lambda: kept_of(results)) as work:

            def say(text: str) -> None:
                """Count the training before, and show which begins."""
                work.to(next(begun))
                work.now(text)

            run_experiments(given, output, say)
            work.to(next(begun))
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)


def kept_of(results: list[Path]) -> str:
    """What is there when a run ends early, for people."""
    there = ", ".join(str(file) for file in results if file.exists())
    return f"kept: {there}" if there else "nothing is kept"


def run_experiments(given: argparse.Namespace, output: Path, say: Say) -> None:
    """Run what the command line asks for; pictures and tables are written at the end."""
    targets, outcomes = [], []
    for name in given.tasks:
        target, some = compare(name, PLANS[name], given.target, say)
        targets.append(target)
        outcomes += some
    sections = {
        "targets": "\n".join(targets) + "\n",
        "comparison": report.short_comparison(outcomes),
    }
    (output / OUTCOMES).write_bytes(pickle.dumps(outcomes))
    if "cancer" in given.tasks:
        sections["schemes"] = schemes(given.target, say)
    if "digits" in given.tasks:
        sections["accuracy"] = accuracies(PLANS["digits"].steps, say)
    switched = []
    for name in given.tasks if given.switch != "none" else ():
        if steps := PLANS[name].switch_steps:
            results = over_switch(name, steps, output, given.switch, say)
            switched.append(switch_table(name, results, steps))
    if switched:
        sections["switch"] = "\n".join(switched)
    every = report.comparison(outcomes)
    (output / "tables.md").write_text("\n".join([*sections.values(), every]))
    for name, body in sections.items() if given.docs else ():
        put_text(PAGE, name, body)
    pictures(output, given.docs)
    print("\n".join(sections.values()))
    print(f"Pictures and tables.md are in {output}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main)
