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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.measured.machine import described

from bench.pages import table
from bench.program import run
from bench.pytorch.accuracy import BASE, HEAD, lines, measure, read, results, without_runs
from bench.record import SITE, Record, Section

METHODS = (
    "Gloo float32",
    "Gloo, fp16 hook",
    "Gloo, PowerSGD",
    "Gloo, PowerSGD, fp16, H = 8",
    "p4reduce float32",
    "p4reduce PowerSGD, int16",
    "p4reduce PowerSGD, int8, H = 8",
    "p4reduce GradiVeQ, int16",
    "Gloo, dense",
    "Gloo, sparse",
    "p4reduce, sparse",
    "p4reduce, sparse, int8",
    *(
        f"{name}, H = {every}"
        for name in (
            "Gloo, local SGD",
            "Gloo, local SGD, fp16",
            "Gloo, PowerSGD 8, fp16",
            "p4reduce int8",
            "p4reduce PowerSGD 8, int8",
        )
        for every in (8, 16, 32)
    ),
    "computing alone",
)
SUMMARY = (
    "links",
    "model",
    "Gloo float32",
    "Gloo as in torch",
    "best of Gloo",
    "best of p4reduce",
    "of Gloo as in torch",
    "of Gloo's best",
    "of it at most",
    "of Gloo float32",
    "fewest bytes: Gloo float32 over ours",
)
IN_TORCH = (
    "Gloo float32",
    "Gloo, fp16 hook",
    "Gloo, PowerSGD",
    "Gloo, dense",
    "Gloo, sparse",
    *(f"Gloo, local SGD, H = {every}" for every in (8, 16, 32)),
)
ALONE = "computing alone"
OUTPUT = Path("build/bench/stacked.json")
PAGE = "docs/experiments.md"


def summary(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return lines for `SUMMARY`, of what reached the target with all seeds."""
    rows = results(runs)
    there = [row for row in rows if row["reached"] == row["seeds"]]
    shown = []
    for here in dict.fromkeys(_place(row) for row in there):
        alike = [row for row in there if _place(row) == here]
        ours = [row for row in alike if row["name"].startswith("p4reduce")]
        theirs = [row for row in alike if row not in ours]
        if not ours or not theirs:
            continue
        rate, model = here
        plain = _fastest([row for row in theirs if row["name"] in IN_TORCH])
        rival, best = _fastest(theirs), _fastest(ours)
        assert rival is not None, "there are some"
        assert best is not None, "there are some"
        least = min(ours, key=lambda row: float(row["megabytes_up"]))
        alone = [row for row in rows if (model, ALONE) == (row["model"], row["name"])]
        base = next((row for row in theirs if row["name"] == BASE[model]), None)
        shown.append(
            [
                f"{rate:g} Mbit/s",
                str(model),
                "-" if base is None else f"{_seconds(base):.1f} s",
                *(
                    "-" if one is None else f"{_seconds(one):.2f} s ({_short(one)})"
                    for one in (plain, rival, best)
                ),
                *(_faster(runs, one, best, ".2f") for one in (plain, rival)),
                f"{_seconds(rival) / _alone_seconds(alone, ours):.2f}" if alone else "-",
                _faster(runs, base, best, ".1f"),
                "-" if base is None else f"{_fewer(runs, base, least):.0f} ({_short(least)})",
            ]
        )
    return shown


def _seconds(row: dict[str, Any]) -> float:
    """What a training takes while nothing else uses the machine."""
    return float(row["steps"]) * float(row["least_step_ms"]) / 1e3


def _fastest(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return min(rows, key=_seconds, default=None)


def _of_both(
    runs: Sequence[dict[str, Any]], one: dict[str, Any], other: dict[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The runs of two rows, by the seeds that both have."""
    by_seed = [
        {
            run["seed"]: run
            for run in runs
            if _place(run) == _place(row) and run["method"] == row["name"]
        }
        for row in (one, other)
    ]
    mine, yours = by_seed
    return [(mine[seed], yours[seed]) for seed in mine if seed in yours]


def _faster(
    runs: Sequence[dict[str, Any]], one: dict[str, Any] | None, other: dict[str, Any], form: str
) -> str:
    """ "1.50 (1.40 to 1.60)"; "-" without a row."""
    if one is None:
        return "-"
    pairs = _of_both(runs, one, other)
    steps = [statistics.median(pair[side]["steps"] for pair in pairs) for side in (0, 1)]
    times = [one["least_step_ms"] * steps[0], other["least_step_ms"] * steps[1]]
    single = [mine["seconds"] / yours["seconds"] for mine, yours in pairs]
    text = f"{times[0] / times[1]:{form}}"
    return text if len(single) == 1 else f"{text} ({min(single):{form}} to {max(single):{form}})"


def _fewer(runs: Sequence[dict[str, Any]], one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = _of_both(runs, one, other)
    return statistics.median(
        float(mine["megabytes_up"]) / float(yours["megabytes_up"]) for mine, yours in pairs
    )


def _place(row: dict[str, Any]) -> tuple[float, str]:
    return row["rate_mbit"], row["model"]


def _alone_seconds(alone: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> float:
    """What computing takes, on links of any rate, in the fewest steps of ours: sums take none."""
    least = min(float(row["least_step_ms"]) for row in alone)
    return least / 1e3 * min(float(row["steps"]) for row in ours)


def _short(row: dict[str, Any]) -> str:
    name: str = row["name"]
    return name.removeprefix("p4reduce").removeprefix("Gloo").strip(", ")


def record(report: dict[str, Any]) -> Record:
    """Return what the page shows."""
    rows = report["results"]
    sections = (
        Section(PAGE, "stacked", f"{described(report)}\n\n", SUMMARY, summary(report["runs"])),
        Section(SITE, "All runs", head=HEAD, rows=lines(rows)),
    )
    command = "python -m bench.pytorch.stacked --docs"
    return Record("stacked", command, without_runs(report), sections)


def main() -> None:
    from bench.pytorch import accuracy_rank  # needs torch

    options = read(__doc__, OUTPUT, PAGE, methods=list(METHODS))
    known = {name: accuracy_rank.METHODS[name] for name in options.methods}
    report = measure(options, known)
    print(table(HEAD, lines(report["results"])))
    print(table(SUMMARY, summary(report["runs"])))
    if options.docs:
        record(report).keep()


if __name__ == "__main__":
    run(main)
