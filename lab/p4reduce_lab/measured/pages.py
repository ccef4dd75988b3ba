# SPDX-License-Identifier: Apache-2.0
"""Sections of pages that measurements write themselves, between a pair of markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError


def put_text(page: Path, name: str, text: str) -> None:
    """Replace what is between `<!-- name -->` and `<!-- /name -->` on a page.

    Raises:
        LabError: the page cannot be read or written, or has no such place.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    try:
        before, found, rest = page.read_text().partition(start)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise LabError(f"{page} has no place for {name!r}: {start.strip()} and {end}")
        page.write_text(f"{before}{start}{text}{end}{after}")
    except OSError as error:
        raise LabError(f"cannot write to {page}: {error.strerror}") from error


def has_place(page: Path, name: str) -> bool:
    """Whether `put_text` finds its markers there."""
    try:
        text = page.read_text()
    except OSError:
        return False
    return f"<!-- {name} -->\n" in text and f"<!-- /{name} -->" in text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
