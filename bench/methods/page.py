# SPDX-License-Identifier: Apache-2.0
"""Keep what build/methods/scorecard.json says as a record, and show it in docs/methods.md.

- `scorecard`: steps and uploads of each method on each task; the record has all columns;
- `choice`: for each task and each thing that can be scarce, the methods that need the least of it.

    python -m bench.methods.page [--scorecard build/methods/scorecard.json]
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from p4reduce_lab.measured.machine import provenance

from bench.methods.scorecard import OUTPUT
from bench.methods.single import HEAD, Row
from bench.pages import DOCS, IMAGES, pivot
from bench.program import read_options, run
from bench.record import ROOT, SITE, Record, Section

PAGE = DOCS / "methods.md"
PICTURE = IMAGES / "methods-scorecard.png"
BASE = "gd"
BEST = 3  # methods in a cell

SCARCE: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("uploads", lambda row: row.uploads),
    ("bytes up", lambda row: row.bytes_up),
    ("bytes up and down", lambda row: row.bytes_up + row.bytes_down),
    ("rounds", lambda row: row.rounds),
    ("time at 1 ms, 10 Mbit/s", lambda row: row.seconds),
)


def rows_of(path: Path) -> list[Row]:
    """Read a scorecard. Raises SystemExit: there is none."""
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        raise SystemExit(f"{path} is not there: run `make methods` first") from None
    return [Row(**each) for each in told]


def choice(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: what is scarce, and the best methods per task with their factors."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    table = []
    for name, amount in SCARCE:
        cells = [name]
        for task in tasks:
            there = [row for row in rows if row.task == task and row.arrived]
            base = next((row for row in there if row.method == BASE), None)
            best = sorted((row for row in there if row.method != BASE), key=amount)[:BEST]
            cells.append(", ".join(_with_gain(row, base, amount) for row in best) or "none")
        table.append(cells)
    return ["scarce", *tasks], table


def _with_gain(row: Row, base: Row | None, amount: Callable[[Row], float]) -> str:
    if base is None:
        return f"`{row.method}`"
    gain = amount(base) / amount(row)
    return f"`{row.method}` {gain:,.0f}×" if gain >= 100 else f"`{row.method}` {gain:.2g}×"


def by_task(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows with a row per method; `rows` are for `HEAD`.

    A gap that is too large, which `Row.cells` puts in parentheses, stands behind the steps.
    """
    steps, gap = HEAD.index("steps"), HEAD.index("gap")
    shown = [
        [*row[:steps], f"{row[steps]} {row[gap]}", *row[gap:]] if row[gap].startswith("(") else row
        for row in rows
    ]
    return pivot(HEAD, shown, ("method",), "task", {", steps": "steps", ", uploads": "uploads"})


def main() -> None:
    options = read_options(__doc__, to_json=False, scorecard=OUTPUT / "scorecard.json")
    rows = rows_of(options.scorecard)
    cells = [row.cells() for row in rows]
    page = str(PAGE.relative_to(ROOT))
    sections = (
        Section(page, "scorecard", "", *by_task(cells)),
        Section(page, "choice", "", *choice(rows)),
        Section(SITE, "All rows", "", HEAD, cells),
    )
    Record("methods", "make methods", provenance(), sections).keep()
    picture = options.scorecard.with_suffix(".png")
    if picture.exists():
        shutil.copyfile(picture, PICTURE)


if __name__ == "__main__":
    run(main)
