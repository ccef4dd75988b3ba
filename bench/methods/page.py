# SPDX-License-Identifier: Apache-2.0
"""Writes what build/methods/scorecard.json says into docs/methods.md, between its markers.

- `scorecard`: all rows;
- `choice`: for each task and each thing that can be scarce, the methods that need the least of it.

    python -m bench.methods.page [--scorecard build/methods/scorecard.json]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.in_docs import DOCS, IMAGES, put_table
from bench.methods.row import HEAD, Row
from bench.methods.scorecard import OUTPUT

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
    """Head and rows: what is scarce, and per task the best methods, with how many times less."""
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
    gain = "" if base is None else f" {amount(base) / amount(row):.2g}×"
    if base is not None and amount(base) / amount(row) >= 100:
        gain = f" {amount(base) / amount(row):,.0f}×"
    return f"`{row.method}`{gain}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--scorecard", type=Path, default=OUTPUT / "scorecard.json")
    options = parser.parse_args()
    rows = rows_of(options.scorecard)
    put_table("scorecard", HEAD, [row.cells() for row in rows], PAGE)
    put_table("choice", *choice(rows), PAGE)
    picture = options.scorecard.with_suffix(".png")
    if picture.exists():
        shutil.copyfile(picture, PICTURE)


if __name__ == "__main__":
    main()
