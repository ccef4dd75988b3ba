# SPDX-License-Identifier: Apache-2.0
"""The error of a thread of this library that met an exception nobody expects."""

from __future__ import annotations

from p4reduce.errors import P4ReduceError


class ThreadFailedError(P4ReduceError):
    """This rank cannot go on, and leaves its job at once, so that no other rank waits for it."""

    @classmethod
    def of(cls, text: str, cause: BaseException) -> ThreadFailedError:
        """Return the error with a cause."""
        error = cls(text)
        error.__cause__ = cause
        return error
