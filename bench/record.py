# SPDX-License-Identifier: Apache-2.0
"""Records: what a benchmark measured, on which machine, at which commit; pages show the newest.

A record is a file in bench/records/, NAME-DATE-COMMIT.json. Its sections have the text of a section
of a page (`bench.pages`). Sections of the page `SITE` have all rows. `make docs`
makes that page, and the repository does not hold it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import described

from bench.pages import put_text, text_of

ROOT = Path(__file__).resolve().parent.parent
RECORDS = Path(__file__).resolve().parent / "records"
SITE = "reference/figures.md"
"""The page of all rows, below the site's pages."""


@dataclass(frozen=True)
class Section:
    """What a pair of markers on a page holds.

    Attributes:
        page: relative to the repository, like "docs/figures.md"; or `SITE`.
        name: of the markers, or the heading on `SITE`.
        text: before the table; ends with an empty line where there is a table.
        head, rows: the table; both empty where there is none.
    """

    page: str
    name: str
    text: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    def markdown(self) -> str:
        """What stands between the markers."""
        return self.text + (markdown_table(self.head, self.rows) if self.head else "")


@dataclass(frozen=True)
class Record:
    """One run of a benchmark.

    Attributes:
        name: of the benchmark: letters, digits and underscores.
        command: that made it.
        begun: machine, time (UTC), commit, versions and load, as of `measured.machine.provenance`.
        sections: what pages show of it.
    """

    name: str
    command: str
    begun: dict[str, Any]
    sections: tuple[Section, ...]

    @property
    def file_name(self) -> str:
        """NAME-DATE-COMMIT.json."""
        commit = str(self.begun.get("commit") or "unknown").rstrip("+")
        return f"{self.name}-{str(self.begun['time'])[:10]}-{commit}.json"

    def save(self, folder: Path = RECORDS) -> Path:
        """Write it into `folder`; an earlier record of the same day and commit is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")
        return path

    @staticmethod
    def read(path: Path) -> Record:
        """Read a record. Raises LabError: the file is none; names it and what is wrong."""
        try:
            whole: dict[str, Any] = json.loads(path.read_text("utf-8"))
            sections = tuple(Section(**one) for one in whole.pop("sections"))
            return Record(sections=sections, **whole)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path} is no record of a benchmark: {error}") from error

    def keep(self) -> None:
        """Save it, and show it in its pages."""
        self.save()
        self.show()

    def show(self, root: Path = ROOT) -> None:
        """Write its sections into their pages, where these have the markers."""
        for section in self.sections:
            if section.page != SITE and text_of(root / section.page, section.name) is not None:
                put_text(root / section.page, section.name, section.markdown())


def newest(folder: Path = RECORDS) -> list[Record]:
    """Return the latest record of each name, in the order of the names."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        record = Record.read(path)
        before = found.get(record.name)
        if before is None or str(before.begun["time"]) < str(record.begun["time"]):
            found[record.name] = record
    return [found[name] for name in sorted(found)]


def site_page(records: Iterable[Record]) -> str:
    """The page `SITE`: what each record has for it, below the command that measured it."""
    lines = ["# All measured rows", "", "[Measured figures](../figures.md) is the summary.", ""]
    for record in records:
        shown = [section for section in record.sections if section.page == SITE]
        if shown:
            begun = described(record.begun) if "machine" in record.begun else record.begun["time"]
            lines += [f"## {record.command}", "", begun, ""]
        for section in shown:
            lines += [f"### {section.name}", "", section.markdown()]
    return "\n".join(lines)


def differing(records: Iterable[Record], root: Path = ROOT) -> list[str]:
    """Return "page: name" for each section that its page lacks or shows otherwise."""
    found = []
    for record in records:
        for section in record.sections:
            if section.page == SITE:
                continue
            if text_of(root / section.page, section.name) != section.markdown():
                found.append(f"{section.page}: {section.name}")
    return found
