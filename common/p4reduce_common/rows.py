# SPDX-License-Identifier: Apache-2.0
"""Tables in a package's files of tab-separated values."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

__all__ = ["markdown_table", "parse_rows", "rows_of"]


def rows_of(package: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a table, each by the names in the table's first line.

    Args:
        package: the import package whose folder has the file.
        name: of the file.

    Raises:
        ValueError: a line has more or fewer cells than the first one; it is named.
    """
    return parse_rows((files(package) / name).read_text("utf-8"), name)


def parse_rows(text: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a table's text; `rows_of` says how, and `name` is for errors."""
    head, *lines = text.splitlines()
    columns = head.split("\t")
    found = []
    for number, line in enumerate(lines, 2):
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise ValueError(f"{name}:{number} has {len(cells)} cells, not {len(columns)}")
        found.append(dict(zip(columns, cells, strict=True)))
    return found


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, with the bars in its cells escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in r] for r in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
