# SPDX-License-Identifier: Apache-2.0
"""Write what `p4reduce-lab compare` measured into pages, between their markers.

    python -m bench.allreduce.comparison_pages [RESULTS] [--page PAGE] [--readme PAGE]

RESULTS is a compare.json, build/compare's by default. Its pictures go into images/ beside the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p4reduce_lab.compare.results import headline
from p4reduce_lab.compare.run import Report, write_page
from p4reduce_lab.measured.pages import put_text

RESULTS = Path("build/compare/compare.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--page", type=Path, help="gets tables and pictures: docs/performance.md")
    parser.add_argument("--readme", type=Path, help="gets the headline: README.md")
    options = parser.parse_args()
    report = Report.read(options.results)
    if options.page is not None:
        write_page(report, options.page, options.page.parent / "images")
    if options.readme is not None and (text := headline(report.rows)):
        put_text(options.readme, "headline", text)


if __name__ == "__main__":
    main()
