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

from bench.allreduce.comparison_tables import aims, variants, whole
from bench.in_docs import IMAGES, PAGE
from bench.record import SITE, Record, Section

UDP_NAME = "compare-udp"
RESULTS = Path("build/compare/compare.json")


def record(report: Report, pictures: str) -> Record:
    """Return what pages show of a comparison.

    Args:
        report: the comparison.
        pictures: lines of Markdown that show them, or an empty text.
    """
    page = f"docs/{PAGE.name}"
    udp = report.settings.get("links") == UDP
    name, command = (UDP_NAME, "make compare LINKS=udp") if udp else ("compare", "make compare")
    cells = cells_of_table(report.rows)
    sections = [
        Section(page, name, introduction(report), *whole(cells)),
        Section(page, f"{name}-pictures", pictures),
        Section(SITE, "All rows", "", HEAD, cells),
    ]
    if not udp:
        reached = aims_table(report.rows)
        sections.append(Section(page, "compare-variants", "", *variants(cells)))
        sections.append(Section(page, "compare-aims", "", *aims(reached)))
        sections.append(Section(SITE, "Aims", "", AIMS_HEAD, reached))
        if text := headline(report.rows):
            sections.append(Section("README.md", "headline", text))
    return Record(name, command, report.begun, tuple(sections))


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
