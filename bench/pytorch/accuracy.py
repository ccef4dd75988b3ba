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
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.networks import links

from bench.in_docs import DOCS, IMAGES, PAGE
from bench.pages import pivot, table
from bench.pytorch.accuracy_plot import plot
from bench.pytorch.over_links import run_over_links
from bench.record import SITE, Record, Section

CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
BASE = {"mlp": "Gloo float32", "cnn": "Gloo float32", "embedding": "Gloo, dense"}
"""What the others are compared with."""
README = DOCS.parent / "README.md"
PICTURE = "time-to-accuracy.png"
OUTPUT = Path("build/bench/accuracy.json")


def train(
    backend: str, methods: Sequence[str], rate: float, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run the methods of a backend one after the other, for each seed, over links of a rate."""
    script = ["-m", "bench.pytorch.accuracy_rank", "--models", *options.models]
    script += ["--methods", *methods, "--seeds", str(options.seeds), "--steps", str(options.steps)]
    # The last option takes a single value, so that the backend after it is none of its values.
    runs: list[dict[str, Any]] = run_over_links(
        backend, script, options.ranks, rate, options.congestion
    )
    return [{"rate_mbit": rate, "ranks": options.ranks, **run} for run in runs]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the report is written after each backend, as far as it has come."""
    from bench.pytorch.accuracy_rank import METHODS  # needs torch

    report: dict[str, Any] = {**provenance("torch"), "runs": [], "results": []}
    for rate in options.rates:
        for backend in ("gloo", "p4reduce"):
            methods = [
                name
                for name, method in METHODS.items()
                if method.backend == backend
                and not set(method.models).isdisjoint(options.models)
                and options.ranks <= method.most_ranks
                and (name in options.methods if options.methods else not method.every)
            ]
            if not methods:
                continue
            runs = train(backend, methods, rate, options)
            report["runs"] += runs
            for run in runs:
                reached = "not reached" if run["seconds"] is None else f"{run['seconds']:8.1f} s"
                print(
                    f"{rate:g} Mbit/s  {run['model']:9} {run['method']:26} seed {run['seed']}: "
                    f"{reached}, {run['steps']} steps of {run['step_ms']:.0f} ms, accuracy "
                    f"{run['accuracy']:.2%}, {run['megabytes_up']:.1f} MB up",
                    flush=True,
                )
            report["results"] = results(report["runs"])
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def results(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each rate and method: medians over the seeds, and their spread."""
    rows = []
    for key in dict.fromkeys((run["rate_mbit"], run["model"], run["method"]) for run in runs):
        some = [run for run in runs if (run["rate_mbit"], run["model"], run["method"]) == key]
        reached = [run["seconds"] for run in some if run["seconds"] is not None]
        rate, model, method = key
        base = {
            run["seed"]: run["seconds"]
            for run in runs
            if (run["rate_mbit"], run["model"], run["method"]) == (rate, model, BASE[model])
        }
        faster = [
            base[run["seed"]] / run["seconds"]
            for run in some
            if run["seconds"] is not None and base.get(run["seed"]) is not None
        ]
        row = {
            "rate_mbit": rate,
            "ranks": some[0]["ranks"],
            "model": model,
            "name": method,
            "seeds": len(some),
            "reached": len(reached),
            "target": some[0]["target"],
            "steps": statistics.median(run["steps"] for run in some),
            "step_ms": statistics.median(run["step_ms"] for run in some),
            "least_step_ms": min(run["step_ms"] for run in some),
            "megabytes_up": statistics.median(run["megabytes_up"] for run in some),
            "accuracy": statistics.median(run["accuracy"] for run in some),
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


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
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


README_HEAD = (
    "links",
    "model",
    "Gloo float32",
    "p4reduce float32",
    "best of Gloo",
    "best of p4reduce",
)


def headline(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return rows for `README_HEAD`: like with like, whole gradients and compressed ones.

    What did not reach the target with all seeds is left out, and a model whose base did not.
    """
    there = [row for row in rows if row["reached"] == row["seeds"]]
    shown = []
    for base in there:
        if base["name"] != BASE[base["model"]]:
            continue
        here = (base["rate_mbit"], base["model"])
        alike = [row for row in there if (row["rate_mbit"], row["model"]) == here]
        ours = [row for row in alike if row["name"].startswith("p4reduce")]
        theirs = [row for row in alike if row not in ours and row is not base]
        if ours:
            whole = [row for row in ours if row["name"].endswith((" float32", ", dense"))]
            shown.append(
                [
                    f"{base['rate_mbit']:g} Mbit/s",
                    f"{base['model']}, to {base['target']:.0%}",
                    f"{base['seconds']:.0f} s",
                    *(_best(some) for some in (whole, theirs, ours)),
                ]
            )
    return shown


def _best(rows: Sequence[dict[str, Any]]) -> str:
    """ "5.0 (CAT)": the fastest, in units of Gloo's speed in float32; "-" if there is none."""
    if not rows:
        return "-"
    best = max(rows, key=lambda row: float(row["speedup"]))
    name = best["name"].removeprefix("p4reduce").removeprefix("Gloo").strip(", ")
    return f"{best['speedup']:.2g}× ({name})"


def record(report: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Record:
    """Return what pages show: all figures, and those of the README."""
    ranks = report["runs"][0]["ranks"]
    picture = f"![Test loss against the time of training](images/{PICTURE})"
    sections = [
        Section(
            f"docs/{PAGE.name}",
            "time-to-accuracy",
            f"{described(report)} {ranks} ranks.\n\n{picture}\n\n",
            *by_links(lines(rows)),
        ),
        Section(SITE, "All rows", "", HEAD, lines(rows)),
    ]
    if shown := headline(rows):
        sections.append(Section(README.name, "headline-training", head=README_HEAD, rows=shown))
    begun = {name: one for name, one in report.items() if name != "runs"}
    return Record("accuracy", "make accuracy", begun, tuple(sections))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 25.0], help="Mbit/s")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="at most")
    parser.add_argument("--models", nargs="+", choices=list(BASE), default=list(BASE))
    parser.add_argument("--methods", nargs="+", help="names, as in the table; default: all")
    parser.add_argument("--congestion", help="TCP's congestion control; default: the machine's")
    parser.add_argument("--json", type=Path, default=OUTPUT)
    parser.add_argument("--from", dest="earlier", type=Path, help="measure nothing, show this file")
    parser.add_argument("--docs", action="store_true", help="keep a record, and show it")
    options = parser.parse_args()
    try:
        if options.earlier is None:
            if (reason := links.unavailable()) is not None:
                raise UnavailableError(f"time to accuracy: {reason}")
            report = measure(options)
        else:
            report = json.loads(options.earlier.read_text())
    except ModuleNotFoundError as error:
        print(f"time to accuracy needs {error.name}: pip install 'p4reduce[torch]'",
              file=sys.stderr)  # fmt: skip
        sys.exit(CANNOT_RUN)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    rows = results(report["runs"])
    print(table(HEAD, lines(rows)))
    plot(report["runs"], options.json.with_name(PICTURE))
    if options.docs:
        measured = record(report, rows)
        measured.save()
        measured.show()
        plot(report["runs"], IMAGES / PICTURE)


if __name__ == "__main__":
    main()
