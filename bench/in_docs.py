# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/ that benchmarks write themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError

from bench.pages import put_text, table

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "figures.md"
IMAGES = DOCS / "images"


def put_table(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]], page: Path = PAGE
) -> None:
    """Replace the section of a page by a table (`bench.pages`)."""
    try:
        put_text(page, name, table(head, rows))
    except LabError as error:
        raise SystemExit(str(error)) from None
