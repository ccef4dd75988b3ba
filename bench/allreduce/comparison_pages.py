# SPDX-License-Identifier: Apache-2.0
"""Keep what `p4reduce-lab compare` measured as a record, and show it in docs/figures.md and README.

    python -m bench.allreduce.comparison_pages [--results FILE]

FILE is a compare.json, build/compare's by default. Its pictures go into docs/images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from p4reduce_lab.compare.cells import UDP
from p4reduce_lab.compare.results import AIMS_HEAD, HEAD, aims_table, cells_of_table, headline
from p4reduce_lab.compare.run import ComparisonReport, draw_pictures, introduction

from bench.pages import FIGURES, IMAGES, pivot
from bench.program import read_options, run
from bench.record import SITE, Record, Section

NAME, UDP_NAME = "compare", "compare-udp"
ONE_MACHINE = "compare-one-machine"
"""Of a comparison in which no rank has a link."""
_OPTIONS = "--ranks 4 --rates none --sizes 1K,64K,1M,4M,32M,64M --turns 9"
_COMMANDS = {
    NAME: "make compare",
    UDP_NAME: "make compare LINKS=udp",
    ONE_MACHINE: f'make compare ARGUMENTS="{_OPTIONS}"',
}
RESULTS = Path("build/compare/compare.json")
Table = tuple[list[str], list[list[str]]]

OURS = "p4reduce"
SYSTEMS = {OURS: OURS, "gloo": "Gloo", "mpi": "Open MPI"}
"""What reduces whole tensors in float32, and its heading."""
_PLACE = ("links", "ranks", "tensor")
_MEDIAN, _TIMES = "median", "times Gloo (turns)"
_COLUMNS = (*_PLACE, "by", _MEDIAN, *HEAD[5:])


def _plain(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows for `_COLUMNS`: names without stars, and medians without their spread."""
    return [
        [*row[:3], row[3].strip("*"), re.sub(r" \(.*\)", "", row[4]), *row[5:]] for row in cells
    ]


def whole(cells: Sequence[Sequence[str]]) -> Table:
    """Whole tensors in float32: each system's median, and how p4reduce compares.

    `variants` are columns at its end where each of them was measured in each place. `cells` are
    rows for `p4reduce_lab.compare.results.HEAD`.
    """
    rows = [row for row in _plain(cells) if row[3] in SYSTEMS]
    head, medians = pivot(_COLUMNS, rows, _PLACE, "by", {"": _MEDIAN})
    ours = {tuple(row[:3]): dict(zip(_COLUMNS, row, strict=True)) for row in rows if row[3] == OURS}
    more = (_TIMES, "of the bound", "limit")
    table = [[*row, *(ours[tuple(row[:3])][name] for name in more)] for row in medians]
    names = [*(SYSTEMS.get(name, name) for name in head), *more]
    if _everywhere(cells):
        variant_names, gains = _variants(cells)
        gain = {tuple(row[:3]): row[3:] for row in gains}
        names += [f"{name}, times Gloo" for name in variant_names[3:]]
        table = [[*row, *gain[tuple(row[:3])]] for row in table]
    return names, table


def variants(cells: Sequence[Sequence[str]]) -> Table:
    """Narrow lanes and blocks of zeros: times the speed of Gloo's float32, by the medians.

    Empty where `whole` has them.
    """
    return ([], []) if _everywhere(cells) else _variants(cells)


def _variants(cells: Sequence[Sequence[str]]) -> Table:
    rows = [
        [re.sub(r" \(.*\)", "", cell) for cell in row]
        for row in _plain(cells)
        if row[3] not in SYSTEMS
    ]
    return pivot(_COLUMNS, rows, _PLACE, "by", {"": _TIMES})


def _everywhere(cells: Sequence[Sequence[str]]) -> bool:
    places = {tuple(row[:3]) for row in cells}
    _, rows = _variants(cells)
    return {tuple(row[:3]) for row in rows} == places and all(all(row) for row in rows)


def aims(rows: Sequence[Sequence[str]]) -> Table:
    """One row per aim: the range of what was measured where the processor is not the limit.

    `rows` are for `p4reduce_lab.compare.results.AIMS_HEAD`.
    """
    merged: dict[tuple[str, str], list[Sequence[str]]] = {}
    for row in rows:
        if not row[AIMS_HEAD.index("reached")].startswith("no claim"):
            merged.setdefault((row[0], row[1]), []).append(row)
    table = []
    for (aim, least), some in merged.items():
        measured = sorted((row[2] for row in some), key=float)
        spread = measured[0] if len(some) == 1 else f"{measured[0]} to {measured[-1]}"
        reached = sum(row[4] == "yes" for row in some)
        table.append([aim, least, spread, f"{reached} of {len(some)}"])
    return ["aim", "at least", "measured", "reached"], table


def name_of(report: ComparisonReport) -> str:
    """Return what a comparison's record is called."""
    if report.settings.get("links") == UDP:
        return UDP_NAME
    return NAME if any(row.rate_mbit for row in report.rows) else ONE_MACHINE


def record(report: ComparisonReport, pictures: str) -> Record:
    """Return what pages show of a comparison; `pictures` are lines of Markdown, or empty."""
    page = f"docs/{FIGURES.name}"
    name = name_of(report)
    cells = cells_of_table(report.rows)
    sections = [
        Section(page, name, introduction(report), *whole(cells)),
        Section(SITE, "All rows", "", HEAD, cells),
    ]
    if pictures:
        sections.append(Section(page, f"{name}-pictures", pictures))
    if name == NAME:
        reached = aims_table(report.rows)
        sections.append(Section(page, "compare-variants", "", *variants(cells)))
        sections.append(Section(page, "compare-aims", "", *aims(reached)))
        sections.append(Section(SITE, "Aims", "", AIMS_HEAD, reached))
        if text := headline(report.rows):
            sections.append(Section("README.md", "headline", text))
    return Record(name, _COMMANDS[name], report.begun, tuple(sections))


def main() -> None:
    options = read_options(__doc__, to_json=False, results=RESULTS)
    report = ComparisonReport.read(options.results)
    name = name_of(report)
    # Without a link there is none to compare by its rate; the rest fits in a table.
    pictures = "" if name == ONE_MACHINE else draw_pictures(report, IMAGES, name)
    record(report, pictures).keep()


if __name__ == "__main__":
    run(main)
