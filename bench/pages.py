# SPDX-License-Identifier: Apache-2.0
"""Sections of pages that measurements write themselves.

A section is between a pair of markers, `<!-- name -->` and `<!-- /name -->`. A long table has a
file of its own, `bench/records/tables/PAGE-NAME.md`. The page has a line with only a link to that
file, and the site shows the table in place of the link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError

DOCS = Path(__file__).resolve().parent.parent / "docs"
FIGURES = DOCS / "figures.md"
IMAGES = DOCS / "images"
TABLE = re.compile(r"^\[[^\]]+\]\(([^)]*\btables/[\w-]+\.md)\)$", re.MULTILINE)
"""A line that a table takes the place of on the site."""


def put_text(page: Path, name: str, text: str) -> None:
    """Replace a section of a page, or the table that the page links to.

    Raises:
        LabError: the page cannot be read or written, or has no such place.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    try:
        if (file := _table_of(page, name)) is not None:
            file.write_text(text)
            return
        before, found, rest = page.read_text().partition(start)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise LabError(f"{page} has no place for {name!r}: {start.strip()} and {end}")
        page.write_text(f"{before}{start}{text}{end}{after}")
    except OSError as error:
        raise LabError(f"cannot write to {page}: {error.strerror}") from error


def text_of(page: Path, name: str) -> str | None:
    """Return what the page shows in a section; None if it has no such place."""
    try:
        if (file := _table_of(page, name)) is not None:
            return file.read_text()
        _, found, rest = page.read_text().partition(f"<!-- {name} -->\n")
    except OSError:
        return None
    text, found_end, _ = rest.partition(f"<!-- /{name} -->")
    return text if found and found_end else None


def with_tables(page: Path, text: str) -> str:
    """Return the text of a page with the tables that it links to."""
    return TABLE.sub(lambda link: (page.parent / link[1]).read_text().rstrip(), text)


def _table_of(page: Path, name: str) -> Path | None:
    for match in TABLE.finditer(page.read_text()):
        link = str(match[1])
        if Path(link).name == f"{page.stem}-{name}.md":
            return page.parent / link
    return None


def pivot(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    index: Sequence[str],
    column: str,
    values: Mapping[str, str],
) -> tuple[list[str], list[list[str]]]:
    """Turn the values of one column into columns of their own.

    Args:
        head, rows: a table.
        index: columns of `head` that stay; rows that are equal in these become one.
        column: the column whose values become columns.
        values: for each new column of a value, the end of its heading and the column of `head`
            that fills it, as in {"": "median", ", MB": "bytes"}.

    Returns:
        The new head and its rows. A cell that no row fills is empty.
    """
    place = {name: number for number, name in enumerate(head)}
    kinds = list(dict.fromkeys(row[place[column]] for row in rows))
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        cells = merged.setdefault(tuple(row[place[name]] for name in index), {})
        for end, filling in values.items():
            cells[row[place[column]] + end] = row[place[filling]]
    names = [kind + end for kind in kinds for end in values]
    return [*index, *names], [
        [*key, *(cells.get(name, "") for name in names)] for key, cells in merged.items()
    ]
