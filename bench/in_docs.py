# SPDX-License-Identifier: Apache-2.0
"""Tables in docs/ that benchmarks write themselves, between a pair of markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "performance.md"
IMAGES = DOCS / "images"


def put_table(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]], page: Path = PAGE
) -> None:
    """Replace what is between `<!-- name -->` and `<!-- /name -->` on a page."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.read_text().partition(start)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise SystemExit(f"{page} has no place for {name!r}")
    lines = [head, ["---"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    page.write_text(f"{before}{start}{table}{end}{after}")
