# SPDX-License-Identifier: Apache-2.0
"""Time to accuracy: how long a training takes over slow links, by Gloo and by the switch.

Each rank is in a namespace with two links of the same rate, as for `p4reduce-lab compare`: Gloo's
to a bridge, p4reduce's to the switch. The same network, data, batches, seeds and optimiser are
trained by DistributedDataParallel until the test accuracy is reached: a perceptron of a million
parameters and the convolutional network of `make run FRAMEWORK=torch`, which has 38,282, on
scikit-learn's digits, and a bag of words with an embedding of 1.3 million parameters on synthetic
texts. Only summing the gradients differs. All of the gradient is one bucket, as
PowerSGD over Gloo does not end with several.

    python -m bench.pytorch.accuracy [--rates 100 25] [--ranks 8] [--seeds 3] [--steps 300]
        [--models mlp cnn embedding] [--methods NAME ...] [--json FILE] [--from FILE] [--docs]
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.measured.machine import described, provenance

from bench import program
from bench.pages import FIGURES, IMAGES, pivot
from bench.program import Option, read_options, some
from bench.pytorch.accuracy_plot import plot
from bench.pytorch.over_links import run_over_links
from bench.record import SITE, Record, Section

BASE = {"mlp": "Gloo float32", "cnn": "Gloo float32", "embedding": "Gloo, dense"}
"""What the others are compared with."""
PICTURE = "time-to-accuracy.png"
OUTPUT = Path("build/bench/accuracy.json")

Rows = Sequence[dict[str, Any]]


def measure(options: argparse.Namespace, methods: Mapping[str, Any]) -> dict[str, Any]:
    """Run everything, or put files of earlier runs together; `--json` is written as it comes.

    `methods` are by their names, as in `accuracy_rank`.
    """
    from bench.pytorch.accuracy_rank import train_all  # needs torch

    if options.earlier:
        report = together(options.earlier)
        return {**report, "results": results(report["runs"])}
    report = {**provenance("torch"), "runs": [], "results": []}
    given = some(options, "models", "seeds", "steps", "congestion")
    for rate, backend in itertools.product(options.rates, ("gloo", "p4reduce")):
        names = [
            name
            for name, method in methods.items()
            if method.backend == backend
            and not set(method.models).isdisjoint(options.models)
            and options.ranks <= method.most_ranks
        ]
        if not names:
            continue
        for one in run_over_links(backend, train_all, options.ranks, rate, methods=names, **given):
            report["runs"].append({"rate_mbit": rate, "ranks": options.ranks, **one})
            reached = "not reached" if one["seconds"] is None else f"{one['seconds']:8.1f} s"
            print(
                f"{rate:g} Mbit/s  {one['model']:9} {one['method']:30} seed {one['seed']}: "
                f"{reached}, {one['steps']} steps of {one['step_ms']:.0f} ms, accuracy "
                f"{one['accuracy']:.2%}, {one['megabytes_up']:.1f} MB up",
                flush=True,
            )
        report["results"] = results(report["runs"])
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def together(files: Sequence[Path]) -> dict[str, Any]:
    """Return the first of some reports, with the runs of all, and what only others have."""
    report, *others = [json.loads(path.read_text()) for path in files]
    runs = [run for one in (report, *others) for run in one["runs"]]
    for other in others:
        report = other | report
    return {**report, "runs": runs}


def beginning(report: dict[str, Any], without: Sequence[str] = ("runs",)) -> dict[str, Any]:
    """What a record keeps of a report's beginning."""
    return {name: one for name, one in report.items() if name not in without}


def place(row: dict[str, Any]) -> tuple[float, str]:
    """The rate and the model of a run or a row."""
    return row["rate_mbit"], row["model"]


def results(runs: Rows) -> list[dict[str, Any]]:
    """Return a row for each rate and method: medians over the seeds, and their spread."""
    rows = []
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((*place(run), run["method"]), []).append(run)
    for (rate, model, method), alike in groups.items():
        reached = [run["seconds"] for run in alike if run["seconds"] is not None]
        base = {run["seed"]: run["seconds"] for run in groups.get((rate, model, BASE[model]), ())}
        faster = [
            base[run["seed"]] / run["seconds"]
            for run in alike
            if run["seconds"] is not None and base.get(run["seed"]) is not None
        ]
        medians = ("steps", "step_ms", "megabytes_up", "accuracy")
        row = {
            "rate_mbit": rate,
            "ranks": alike[0]["ranks"],
            "model": model,
            "name": method,
            "seeds": len(alike),
            "reached": len(reached),
            "target": alike[0]["target"],
            **{name: statistics.median(run[name] for run in alike) for name in medians},
            "least_step_ms": min(run["step_ms"] for run in alike),
        }
        if reached:
            row |= {"seconds": statistics.median(reached)}
            row |= {"fastest_seconds": min(reached), "slowest_seconds": max(reached)}
        if faster:
            row |= {"speedup": statistics.median(faster)}
            row |= {"least_speedup": min(faster), "most_speedup": max(faster)}
        rows.append(row)
    return rows


HEAD = ("links", "model", "gradients by", "time to target", "of Gloo's speed", "steps", "a step",
        "MB sent by a rank", "accuracy")  # fmt: skip


def lines(rows: Rows) -> list[list[str]]:
    """Return rows for `HEAD`."""
    shown = []
    for row in rows:
        taken, faster = "not reached", "-"
        if "seconds" in row:
            taken = f"{row['seconds']:.1f} s"
            if row["reached"] > 1:
                taken += f" ({row['fastest_seconds']:.1f} to {row['slowest_seconds']:.1f})"
            if row["reached"] < row["seeds"]:
                taken += f", {row['reached']} of {row['seeds']} seeds"
        if "speedup" in row and row["name"] != BASE[row["model"]]:
            faster = f"{row['speedup']:.2f} ({row['least_speedup']:.2f} to "
            faster += f"{row['most_speedup']:.2f})"
        shown.append(
            [
                f"{row['rate_mbit']:g} Mbit/s",
                f"{row['model']}, to {row['target']:.0%}",
                row["name"],
                taken,
                faster,
                f"{row['steps']:g}",
                f"{row['step_ms']:.0f} ms",
                f"{row['megabytes_up']:.1f}",
                f"{row['accuracy']:.1%}",
            ]
        )
    return shown


def by_links(cells: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a short table: a row per model and method, of rows for `HEAD`."""
    values = {"": "time to target", ", of Gloo's speed": "of Gloo's speed"}
    short = [[re.sub(r" \(.*?\)", "", cell) for cell in row] for row in cells]
    models = [row[1] for row in short]
    short.sort(key=lambda row: models.index(row[1]))
    return pivot(HEAD, short, ("model", "gradients by"), "links", values)


README_HEAD = ("links", "model", "Gloo float32", "p4reduce float32", "best of Gloo",
               "best of p4reduce")  # fmt: skip


def headline(rows: Rows) -> list[list[str]]:
    """Return rows for `README_HEAD`: like with like, whole gradients and compressed ones.

    What did not reach the target with all seeds is left out, and a model whose base did not.
    """
    there = [row for row in rows if row["reached"] == row["seeds"]]
    shown = []
    for base in there:
        if base["name"] != BASE[base["model"]]:
            continue
        alike = [row for row in there if place(row) == place(base)]
        ours = [row for row in alike if row["name"].startswith("p4reduce")]
        theirs = [row for row in alike if row not in ours and row is not base]
        if ours:
            whole = [row for row in ours if row["name"].endswith((" float32", ", dense"))]
            shown.append(
                [
                    f"{base['rate_mbit']:g} Mbit/s",
                    f"{base['model']}, to {base['target']:.0%}",
                    f"{base['seconds']:.0f} s",
                    *(_best(one) for one in (whole, theirs, ours)),
                ]
            )
    return shown


def _best(rows: Rows) -> str:
    """ "5.0 (CAT)": the fastest, in units of Gloo's speed in float32; "-" if there is none."""
    if not rows:
        return "-"
    best = max(rows, key=lambda row: float(row["speedup"]))
    return f"{best['speedup']:.2g}× ({short_name(best)})"


def short_name(row: dict[str, Any]) -> str:
    """A method's name without that of its system."""
    name: str = row["name"]
    return name.removeprefix("p4reduce").removeprefix("Gloo").strip(", ")


def record(report: dict[str, Any], rows: Rows) -> Record:
    """Return what pages show: all figures, and those of the README."""
    picture = f"![Test loss against the time of training](images/{PICTURE})"
    text = f"{described(report)} {report['runs'][0]['ranks']} ranks.\n\n{picture}\n\n"
    sections = [
        Section(f"docs/{FIGURES.name}", "time-to-accuracy", text, *by_links(lines(rows))),
        Section(SITE, "All rows", "", HEAD, lines(rows)),
    ]
    if shown := headline(rows):
        sections.append(Section("README.md", "headline-training", head=README_HEAD, rows=shown))
    return Record("accuracy", "make accuracy", beginning(report), tuple(sections))


def read(doc: str | None, output: Path, page: str, **wanted: Any) -> argparse.Namespace:
    """Parse the command line of a program that trains over links; `wanted` are its defaults."""
    common: dict[str, Any] = {
        "rates": Option([10.0, 25.0, 100.0], "Mbit/s"),
        "ranks": 8,
        "seeds": 1,
        "steps": Option(300, "at most"),
        "models": Option(list(BASE), choices=list(BASE)),
        "methods": Option(list[str](), "names, as in the table; default: all", str),
        "congestion": Option(None, "TCP's congestion control; default: the machine's", str),
        "json": output,
        "from": Option(list[Path](), "measure nothing, show these files together", Path),
    }
    options = read_options(doc, to_json=False, docs=page, **(common | wanted))
    options.earlier = vars(options).pop("from")
    return options


def main() -> None:
    from bench.pytorch.accuracy_rank import METHODS  # needs torch

    options = read(
        __doc__, OUTPUT, f"README.md and docs/{FIGURES.name}", rates=[100.0, 25.0], seeds=3
    )
    wanted = options.methods or [name for name, method in METHODS.items() if not method.every]
    report = measure(options, {name: METHODS[name] for name in METHODS if name in wanted})
    rows = results(report["runs"])
    print(markdown_table(HEAD, lines(rows)))
    plot(report["runs"], options.json.with_name(PICTURE))
    if options.docs:
        record(report, rows).keep()
        plot(report["runs"], IMAGES / PICTURE)


if __name__ == "__main__":
    program.run(main)
