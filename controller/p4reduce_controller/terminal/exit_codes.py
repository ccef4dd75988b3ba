# SPDX-License-Identifier: Apache-2.0
"""The meaning of the command line's exit codes."""

from __future__ import annotations

import enum

import click


class Exit(enum.IntEnum):
    """Exit codes of `p4reduce-controller`."""

    def __new__(cls, code: int, meaning: str) -> Exit:
        """Keep the meaning beside the number."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    meaning: str

    OK = 0, "done"
    REFUSED = 1, "refused by the controller, or it failed"
    USAGE = 2, "wrong arguments"
    UNREACHABLE = 3, "no controller answers"
    BACKUP = 4, "serve: another controller owns the switch"
    NOT_FOUND = 5, "no such job or table"
    DEADLINE = 6, "not done in time"
    NO_SWITCH = 7, "serve: no switch answers"
    NO_LISTEN = 8, "serve: cannot listen there"
    SICK = 9, "doctor: something needs repair"


class CommandFailure(click.ClickException):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # declared for classes, read of instances
