# SPDX-License-Identifier: Apache-2.0
"""Keep what `p4reduce-lab compare` measured as a record, and show it in docs/figures.md and README.

    python -m bench.allreduce.comparison_pages [--results FILE]

FILE is a compare.json, build/compare's by default. Its pictures go into docs/images.
"""

from __future__ import annotations

from pathlib import Path

from p4reduce_lab.compare.cells import UDP
from p4reduce_lab.compare.results import AIMS_HEAD, HEAD, aims_table, cells_of_table, headline
from p4reduce_lab.compare.run import ComparisonReport, draw_pictures, introduction

from bench.allreduce.comparison_tables import aims, variants, whole
from bench.pages import FIGURES, IMAGES
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
