# SPDX-License-Identifier: Apache-2.0
"""What an examination finds."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


class Status(enum.Enum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # something optional is not there
    WARNING = "warning"  # works, but not well, or not for long
    FAILURE = "failure"
    SKIPPED = "skipped"  # not looked at, and why


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        section: what it is about.
        name: what was looked at.
        status: how it is.
        found: what was found, for people.
        cure: what to do; empty where nothing has to be done.
    """

    section: str
    name: str
    status: Status
    found: str
    cure: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "status": self.status.value}


def ok(section: str, name: str, found: str) -> Finding:
    return Finding(section, name, Status.OK, found)


def note(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, Status.NOTE, found, cure)


def warning(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, Status.WARNING, found, cure)


def failure(section: str, name: str, found: str, cure: str) -> Finding:
    return Finding(section, name, Status.FAILURE, found, cure)


def skipped(section: str, name: str, why: str, cure: str = "") -> Finding:
    return Finding(section, name, Status.SKIPPED, why, cure)
