# SPDX-License-Identifier: Apache-2.0
"""A hundred times fewer bytes: local steps, factors and narrow lanes together, beside Gloo's best.

The runs are those of `bench.pytorch.accuracy`, on slower links too. The rival is the fastest that
Gloo can do in the same training: float32, float16, PowerSGD, sparse rows, and local SGD with the
same number of steps, also in float16 and with PowerSGD. "As in torch" is what needs
nothing but torch. What computing takes without any sums bounds all of them.

Other work on the machine only adds time, by chance. So the summary takes the least time per step
of all seeds, times the median of the steps. In parentheses are the ratios of single seeds.

    python -m bench.pytorch.stacked [--rates 10 25 100] [--seeds 1] [--models mlp cnn embedding]
        [--methods NAME ...] [--from FILE ...] [--docs]
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.measured.machine import described

from bench.program import run
from bench.pytorch.accuracy import (
    BASE,
    HEAD,
    Rows,
    beginning,
    lines,
    measure,
    place,
    read,
    results,
    short_name,
)
from bench.record import SITE, Record, Section

LOCAL = ("Gloo, local SGD", "Gloo, local SGD, fp16", "Gloo, PowerSGD 8, fp16", "p4reduce int8",
         "p4reduce PowerSGD 8, int8")  # fmt: skip
ALONE = "computing alone"
METHODS = (
    "Gloo float32", "Gloo, fp16 hook", "Gloo, PowerSGD", "Gloo, PowerSGD, fp16, H = 8",
    "p4reduce float32", "p4reduce PowerSGD, int16", "p4reduce PowerSGD, int8, H = 8",
    "p4reduce GradiVeQ, int16", "Gloo, dense", "Gloo, sparse", "p4reduce, sparse",
    "p4reduce, sparse, int8", *(f"{name}, H = {every}" for name in LOCAL for every in (8, 16, 32)),
    ALONE,
)  # fmt: skip
IN_TORCH = ("Gloo float32", "Gloo, fp16 hook", "Gloo, PowerSGD", "Gloo, dense", "Gloo, sparse",
            *(f"Gloo, local SGD, H = {every}" for every in (8, 16, 32)))  # fmt: skip
SUMMARY = ("links", "model", "Gloo float32", "Gloo as in torch", "best of Gloo", "best of p4reduce",
           "of Gloo as in torch", "of Gloo's best", "of it at most", "of Gloo float32",
           "fewest bytes: Gloo float32 over ours")  # fmt: skip
OUTPUT = Path("build/bench/stacked.json")
PAGE = "docs/experiments.md"

Run = dict[str, Any]


def summary(runs: Rows) -> list[list[str]]:
    """Return lines for `SUMMARY`, of what reached the target with all seeds."""
    rows = results(runs)
    there = [row for row in rows if row["reached"] == row["seeds"]]
    shown = []
    for rate, model in dict.fromkeys(map(place, there)):
        alike = [row for row in there if place(row) == (rate, model)]
        ours = [row for row in alike if row["name"].startswith("p4reduce")]
        theirs = [row for row in alike if row not in ours]
        if not ours or not theirs:
            continue
        plain = min((row for row in theirs if row["name"] in IN_TORCH), key=_seconds, default=None)
        rival, best = min(theirs, key=_seconds), min(ours, key=_seconds)
        least = min(ours, key=lambda row: float(row["megabytes_up"]))
        base = next((row for row in theirs if row["name"] == BASE[model]), None)
        # Computing takes as long on links of any rate, in the fewest steps of ours.
        alone = [
            row["least_step_ms"] for row in rows if (model, ALONE) == (row["model"], row["name"])
        ]
        fewest = min(row["steps"] for row in ours)
        most = f"{_seconds(rival) / (min(alone) / 1e3 * fewest):.2f}" if alone else "-"
        shown.append(
            [
                f"{rate:g} Mbit/s",
                model,
                "-" if base is None else f"{_seconds(base):.1f} s",
                *(
                    "-" if one is None else f"{_seconds(one):.2f} s ({short_name(one)})"
                    for one in (plain, rival, best)
                ),
                *(_faster(runs, one, best, ".2f") for one in (plain, rival)),
                most,
                _faster(runs, base, best, ".1f"),
                "-" if base is None else f"{_fewer(runs, base, least):.0f} ({short_name(least)})",
            ]
        )
    return shown


def _seconds(row: Run) -> float:
    """What a training takes while nothing else uses the machine."""
    return float(row["steps"]) * float(row["least_step_ms"]) / 1e3


def _of_both(runs: Rows, one: Run, other: Run) -> list[tuple[Run, Run]]:
    """The runs of two rows, by the seeds that both have."""
    mine, yours = (
        {
            run["seed"]: run
            for run in runs
            if (place(run), run["method"]) == (place(row), row["name"])
        }
        for row in (one, other)
    )
    return [(mine[seed], yours[seed]) for seed in mine if seed in yours]


def _faster(runs: Rows, one: Run | None, other: Run, form: str) -> str:
    """ "1.50 (1.40 to 1.60)"; "-" without a row."""
    if one is None:
        return "-"
    pairs = _of_both(runs, one, other)
    steps = [statistics.median(pair[side]["steps"] for pair in pairs) for side in (0, 1)]
    ratio = one["least_step_ms"] * steps[0] / (other["least_step_ms"] * steps[1])
    single = [mine["seconds"] / yours["seconds"] for mine, yours in pairs]
    text = f"{ratio:{form}}"
    return text if len(single) == 1 else f"{text} ({min(single):{form}} to {max(single):{form}})"


def _fewer(runs: Rows, one: Run, other: Run) -> float:
    pairs = _of_both(runs, one, other)
    return statistics.median(
        float(mine["megabytes_up"] / yours["megabytes_up"]) for mine, yours in pairs
    )


def record(report: dict[str, Any]) -> Record:
    """Return what the page shows."""
    sections = (
        Section(PAGE, "stacked", f"{described(report)}\n\n", SUMMARY, summary(report["runs"])),
        Section(SITE, "All runs", head=HEAD, rows=lines(report["results"])),
    )
    return Record("stacked", "python -m bench.pytorch.stacked --docs", beginning(report), sections)


def main() -> None:
    from bench.pytorch import accuracy_rank  # needs torch

    options = read(__doc__, OUTPUT, PAGE, methods=list(METHODS))
    report = measure(options, {name: accuracy_rank.METHODS[name] for name in options.methods})
    print(markdown_table(HEAD, lines(report["results"])))
    print(markdown_table(SUMMARY, summary(report["runs"])))
    if options.docs:
        record(report).keep()


if __name__ == "__main__":
    run(main)
