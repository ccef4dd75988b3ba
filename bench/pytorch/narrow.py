# SPDX-License-Identifier: Apache-2.0
"""Lanes of 4 bits and signs beside wider lanes: accuracy, and time to it over slow links.

The convolutional network of `bench.pytorch.accuracy` with 7 ranks, the most that lanes of 4 bits
are for. Each way of summing has the rate, and momentum or none, with which it trains fastest among
those that were tried in one process: rates 0.05 to 0.1 with momentum 0.9, 0.1 to 2 without, and
0.001 to 0.01 for votes.

    python -m bench.pytorch.narrow [--rates 10 25 100] [--seeds 2] [--json FILE] [--from FILE ...]
        [--docs]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.networks import links

from bench.pages import pivot, table
from bench.pytorch.accuracy import BASE, CANNOT_RUN, results, train
from bench.record import SITE, Record, Section

RANKS = 7
STEPS = 300  # at most
BASE_NAME = "Gloo, float32"
OUTPUT = Path("build/bench/narrow.json")
PAGE = "docs/lanes.md"
HEAD = ("gradients by", "links", "steps", "accuracy", "kB per step", "a step", "time to 93 %",
        "times Gloo")  # fmt: skip


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with all methods over links of each rate."""
    from bench.pytorch.accuracy_rank import LANES  # needs torch

    found = []
    for rate in options.rates:
        for backend in ("gloo", "p4reduce"):
            names = [name for name, method in LANES.items() if method.backend == backend]
            for run in train(backend, names, rate, options):
                found.append(run)
                print(f"{rate:g} Mbit/s  {run['method']:30} {run['seconds'] or 0:6.1f} s, "
                      f"{run['steps']} steps, {run['accuracy']:.1%}", flush=True)  # fmt: skip
    return found


def lines(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return rows for `HEAD`: medians over the seeds."""
    # `results` compares with what is called so.
    renamed = {BASE_NAME: BASE["cnn"]}
    rows = results([{**run, "method": renamed.get(run["method"], run["method"])} for run in runs])
    shown = []
    for row in rows:
        name = BASE_NAME if row["name"] == BASE["cnn"] else row["name"]
        there = row["reached"] == row["seeds"]
        shown.append(
            [
                name,
                f"{row['rate_mbit']:g} Mbit/s",
                f"{row['steps']:g}",
                f"{row['accuracy']:.1%}",
                f"{1e3 * row['megabytes_up'] / row['steps']:.0f}",
                f"{row['step_ms']:.0f} ms",
                f"{row['seconds']:.1f} s" if there else f"{row['reached']} of {row['seeds']} seeds",
                f"{row['speedup']:.2f}" if there and "speedup" in row else "-",
            ]
        )
    return shown


def record(report: dict[str, Any]) -> Record:
    """Return what the page shows: short, and all of it in the record."""
    rows = lines(report["runs"])
    short = pivot(HEAD, rows, ("gradients by", "steps", "accuracy"), "links",
                  {"": "time to 93 %", ", times Gloo": "times Gloo"})  # fmt: skip
    begun = {name: one for name, one in report.items() if name != "runs"}
    sections = (
        Section(PAGE, "lanes-accuracy", f"{described(report)}\n\n", *short),
        Section(SITE, "All lanes", head=HEAD, rows=rows),
    )
    return Record("narrow", "python -m bench.pytorch.narrow --docs", begun, sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[10.0, 25.0, 100.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=OUTPUT)
    parser.add_argument("--from", dest="earlier", type=Path, nargs="+", default=[],
                        help="measure nothing, show these files together")  # fmt: skip
    parser.add_argument("--docs", action="store_true", help=f"keep a record, update {PAGE}")
    options = parser.parse_args()
    options.models, options.ranks, options.steps = ["cnn"], RANKS, STEPS
    options.congestion = None
    if options.earlier:
        report, *others = [json.loads(path.read_text()) for path in options.earlier]
        report["runs"] += [run for other in others for run in other["runs"]]
    else:
        if (reason := links.unavailable()) is not None:
            print(f"lanes over links: {reason}", file=sys.stderr)
            sys.exit(CANNOT_RUN)
        report = {**provenance("torch")}
        try:
            report["runs"] = measure(options)
        except LabError as error:
            sys.exit(str(error))
    for run in report["runs"]:
        run.pop("curve", None)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(HEAD, lines(report["runs"])))
    if options.docs:
        kept = record(report)
        kept.save()
        kept.show()


if __name__ == "__main__":
    main()
