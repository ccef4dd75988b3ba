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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.measured.machine import described

from bench.pages import pivot
from bench.program import run
from bench.pytorch.accuracy import BASE, beginning, measure, read, results
from bench.record import SITE, Record, Section

BASE_NAME = "Gloo, float32"
OUTPUT = Path("build/bench/narrow.json")
PAGE = "docs/lanes.md"
HEAD = ("gradients by", "links", "steps", "accuracy", "kB per step", "a step", "time to 93 %",
        "times Gloo")  # fmt: skip


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
    sections = (
        Section(PAGE, "lanes-accuracy", f"{described(report)}\n\n", *short),
        Section(SITE, "All lanes", head=HEAD, rows=rows),
    )
    return Record("narrow", "python -m bench.pytorch.narrow --docs", beginning(report), sections)


def main() -> None:
    from bench.pytorch.accuracy_rank import LANES  # needs torch

    options = read(__doc__, OUTPUT, PAGE, ranks=7, seeds=2, models=["cnn"])
    report = measure(options, LANES)
    del report["results"]  # they compare with a base of another name
    print(markdown_table(HEAD, lines(report["runs"])))
    if options.docs:
        record(report).keep()


if __name__ == "__main__":
    run(main)
