# SPDX-License-Identifier: Apache-2.0
"""The report for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from p4reduce_controller.doctor.finding import Finding, FindingStatus

_MARKS = {
    FindingStatus.OK: ("✓", "green"),
    FindingStatus.NOTE: ("-", "dim"),
    FindingStatus.WARNING: ("!", "yellow"),
    FindingStatus.FAILURE: ("✗", "bold red"),
    FindingStatus.SKIPPED: ("·", "dim"),
}
_NAME_WIDTH = 18


class FindingsPrinter:
    """Prints findings as they are made, with a heading per section."""

    def __init__(self) -> None:
        self._section = ""

    def add(self, console: Console, finding: Finding) -> None:
        """Print a finding."""
        if finding.section != self._section:
            if self._section:
                console.print()
            self._section = finding.section
            console.print(Text(finding.section, style="bold"))
        if console.is_terminal:
            console.print(Padding(_line(finding), (0, 0, 0, 2)))
        else:
            console.print(_plain(finding), markup=False)


def _line(finding: Finding) -> RenderableType:
    mark, style = _MARKS[finding.status]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(width=_NAME_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    quiet = finding.status in (FindingStatus.NOTE, FindingStatus.SKIPPED)
    grid.add_row(
        Text(mark, style=style),
        Text(finding.name, style=style if finding.status is FindingStatus.FAILURE else ""),
        Text(finding.found, style="dim" if quiet else ""),
    )
    if finding.cure:
        grid.add_row("", "", Text(f"→ {finding.cure}", style="dim" if quiet else "cyan"))
    return grid


def _plain(finding: Finding) -> str:
    """For a pipe: no column is filled up with spaces."""
    mark, _ = _MARKS[finding.status]
    text = f"  {mark} {finding.name:{_NAME_WIDTH}} {finding.found}"
    return text + (f"\n    {'':{_NAME_WIDTH}} → {finding.cure}" if finding.cure else "")


def verdict(findings: Iterable[Finding]) -> Text:
    """Return the report's last line."""
    statuses = [finding.status for finding in findings]
    failures, warnings = (
        statuses.count(FindingStatus.FAILURE),
        statuses.count(FindingStatus.WARNING),
    )
    if failures:
        text = Text(f"{_count(failures, 'thing')} to repair", style="bold red")
        if warnings:
            text.append(f", {_count(warnings, 'warning')}", style="yellow")
        return text
    if warnings:
        return Text(f"In order, with {_count(warnings, 'warning')}", style="yellow")
    return Text("In order", style="bold green")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
