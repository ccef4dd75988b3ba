# SPDX-License-Identifier: Apache-2.0
"""A hundred times fewer bytes: local steps, factors and narrow lanes together, beside Gloo's best.

The runs are those of `bench.pytorch.accuracy`, on slower links too. The rival is the fastest that
Gloo can do in the same training: float32, float16, PowerSGD, and local SGD with the same number of
steps, with and without PowerSGD.

    python -m bench.pytorch.stacked [--rates 10 25 100] [--seeds 1] [--models mlp cnn] [--docs]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import described
from p4reduce_lab.measured.pages import table
from p4reduce_lab.networks import links

from bench.pytorch.accuracy import BASE, CANNOT_RUN, HEAD, lines, measure
from bench.record import SITE, Record, Section

METHODS = (
    *("Gloo float32", "Gloo, fp16 hook", "Gloo, PowerSGD", "Gloo, local SGD, H = 8"),
    *("Gloo, local SGD, fp16, H = 8", "Gloo, PowerSGD, fp16, H = 8"),
    *("p4reduce float32", "p4reduce PowerSGD, int16", "p4reduce int8, H = 8"),
    "p4reduce PowerSGD, int8, H = 8",
)
SUMMARY = (
    *("links", "model", "Gloo float32", "best of Gloo", "best of p4reduce"),
    *("of Gloo's best", "of Gloo float32", "fewest bytes: Gloo float32 over ours"),
)
OUTPUT = Path("build/bench/stacked.json")
PAGE = "docs/experiments.md"


def summary(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return lines for `SUMMARY`, of what reached the target with all seeds."""
    there = [row for row in rows if row["reached"] == row["seeds"]]
    shown = []
    for base in there:
        if base["name"] != BASE[base["model"]]:
            continue
        here = (base["rate_mbit"], base["model"])
        alike = [row for row in there if (row["rate_mbit"], row["model"]) == here]
        ours = [row for row in alike if row["name"].startswith("p4reduce")]
        if not ours:
            continue
        theirs = [row for row in alike if row not in ours]
        rival, best = (min(some, key=lambda row: float(row["seconds"])) for some in (theirs, ours))
        least = min(ours, key=lambda row: float(row["megabytes_up"]))
        shown.append(
            [
                f"{base['rate_mbit']:g} Mbit/s",
                str(base["model"]),
                f"{base['seconds']:.1f} s",
                *(f"{one['seconds']:.1f} s ({_short(one)})" for one in (rival, best)),
                f"{rival['seconds'] / best['seconds']:.2f}",
                f"{base['seconds'] / best['seconds']:.1f}",
                f"{base['megabytes_up'] / least['megabytes_up']:.0f} ({_short(least)})",
            ]
        )
    return shown


def _short(row: dict[str, Any]) -> str:
    name: str = row["name"]
    return name.removeprefix("p4reduce").removeprefix("Gloo").strip(", ")


def record(report: dict[str, Any]) -> Record:
    """Return what the page shows."""
    rows = report["results"]
    sections = (
        Section(PAGE, "stacked", f"{described(report)}\n\n", SUMMARY, summary(rows)),
        Section(SITE, "All runs", head=HEAD, rows=lines(rows)),
    )
    begun = {name: one for name, one in report.items() if name != "runs"}
    return Record("stacked", "python -m bench.pytorch.stacked --docs", begun, sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[10.0, 25.0, 100.0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300, help="at most")
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--congestion", help="TCP's congestion control; default: the machine's")
    parser.add_argument("--json", type=Path, default=OUTPUT)
    parser.add_argument("--from", dest="earlier", type=Path, help="measure nothing, show this file")
    parser.add_argument("--docs", action="store_true", help=f"keep a record, update {PAGE}")
    options = parser.parse_args()
    if options.earlier is None and (reason := links.unavailable()) is not None:
        print(f"time to accuracy: {reason}", file=sys.stderr)
        sys.exit(CANNOT_RUN)
    try:
        read = options.earlier
        report = measure(options) if read is None else json.loads(read.read_text())
    except LabError as error:
        sys.exit(str(error))
    print(table(HEAD, lines(report["results"])))
    print(table(SUMMARY, summary(report["results"])))
    if options.docs:
        kept = record(report)
        kept.save()
        kept.show()


if __name__ == "__main__":
    main()
