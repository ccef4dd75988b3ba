# SPDX-License-Identifier: Apache-2.0
"""A finding of the doctor, and its status."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


class FindingStatus(enum.Enum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"  # something optional is not there
    WARNING = "warning"  # works, but not well, or not for long
    FAILURE = "failure"
    SKIPPED = "skipped"  # not checked, and why


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        section: of the report.
        name: what was examined.
        status: how serious it is.
        found: what was found, for people.
        cure: what to do; empty if nothing is wrong.
    """

    section: str
    name: str
    status: FindingStatus
    found: str
    cure: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        return {**asdict(self), "status": self.status.value}


def ok(section: str, name: str, found: str) -> Finding:
    return Finding(section, name, FindingStatus.OK, found)


def note(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, FindingStatus.NOTE, found, cure)


def warning(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, FindingStatus.WARNING, found, cure)


def failure(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, FindingStatus.FAILURE, found, cure)


def skipped(section: str, name: str, why: str, cure: str = "") -> Finding:
    return Finding(section, name, FindingStatus.SKIPPED, why, cure)
