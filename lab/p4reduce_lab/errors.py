# SPDX-License-Identifier: Apache-2.0
"""Errors that end a lab command with a message and an exit code instead of a traceback."""

from __future__ import annotations

import signal


class LabError(Exception):
    """An error that the user can act on. The command prints it and exits with ``exit_code``."""

    exit_code = 1


class UnavailableError(LabError):
    """Something needed is missing on this machine. The message says what to install."""

    exit_code = 2


class ArgumentsError(LabError):
    """Arguments are wrong, or contradict each other. The message says which."""

    exit_code = 2


class Interrupted(BaseException):
    """A signal ends the command. It is not an Exception, so no handler swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
