# SPDX-License-Identifier: Apache-2.0
"""Keep what `p4reduce-lab compare` measured as a record, and show it in docs/figures.md and README.

    python -m bench.allreduce.comparison_pages [RESULTS]

RESULTS is a compare.json, build/compare's by default. Its pictures go into docs/images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p4reduce_lab.compare.cells import UDP
from p4reduce_lab.compare.results import AIMS_HEAD, HEAD, aims_table, cells_of_table, headline
from p4reduce_lab.compare.run import Report, draw_pictures, introduction

from bench.in_docs import IMAGES, PAGE
from bench.record import Record, Section

UDP_NAME = "compare-udp"
RESULTS = Path("build/compare/compare.json")


def record(report: Report, pictures: str) -> Record:
    """Return what pages show of a comparison.

    Args:
        report: the comparison.
        pictures: lines of Markdown that show them, or an empty text.
    """
    page = f"docs/{PAGE.name}"
    rows = report.rows
    if report.settings.get("links") == UDP:
        shown = Section(page, UDP_NAME, introduction(report) + pictures, HEAD, cells_of_table(rows))
        return Record(UDP_NAME, "make compare LINKS=udp", report.begun, (shown,))
    sections = [
        Section(page, "compare-aims", head=AIMS_HEAD, rows=aims_table(rows)),
        Section(page, "compare", introduction(report) + pictures, HEAD, cells_of_table(rows)),
    ]
    if text := headline(rows):
        sections.append(Section("README.md", "headline", text))
    return Record("compare", "make compare", report.begun, tuple(sections))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    options = parser.parse_args()
    report = Report.read(options.results)
    prefix = UDP_NAME if report.settings.get("links") == UDP else "compare"
    measured = record(report, draw_pictures(report, IMAGES, prefix))
    measured.save()
    measured.show()


if __name__ == "__main__":
    main()
