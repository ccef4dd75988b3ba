# SPDX-License-Identifier: Apache-2.0
"""Checks, what is wrong, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Check = tuple[str, Callable[[], None]]
"""What has to hold, for people, and what raises WrongError if it does not."""


class UnusableError(Exception):
    """The file cannot be checked at all."""


class WrongError(Exception):
    """Something does not hold.

    Args:
        seen: what happened, and what should have.
        hint: what to think of.
        where: lines of the file that have to do with it.
    """

    def __init__(self, seen: str, hint: str, where: str = "") -> None:
        super().__init__(seen)
        self.seen, self.hint, self.where = seen, hint, where

    def lines(self) -> list[str]:
        """All of it."""
        return [
            self.seen,
            f"hint:  {self.hint}",
            *([f"where: {self.where}"] if self.where else []),
        ]


@dataclass
class Report:
    """What came of the checks.

    Attributes:
        results: each check that was run, and what is wrong, if anything.
        left: how many were not run.
    """

    results: list[tuple[str, WrongError | None]] = field(default_factory=list)
    left: int = 0

    @property
    def passed(self) -> bool:
        """Whether all were run, and nothing is wrong."""
        return not self.left and all(wrong is None for _, wrong in self.results)


def run(checks: Sequence[Check], *, stop: bool = True) -> Report:
    """Run checks; with `stop`, no more than up to the first that finds something wrong."""
    report = Report()
    for at, (name, check) in enumerate(checks):
        wrong = _outcome(check)
        report.results.append((name, wrong))
        if wrong is not None and stop:
            report.left = len(checks) - at - 1
            break
    return report


def _outcome(check: Callable[[], None]) -> WrongError | None:
    try:
        check()
    except WrongError as wrong:
        return wrong
    return None
