# SPDX-License-Identifier: Apache-2.0
"""Errors that say why machine code is not available."""

from __future__ import annotations


class NativeUnavailableError(Exception):
    """Machine code is not available. The message says why and how to get it.

    A caller may catch it and continue in Python.
    """


class CompilerMissingError(NativeUnavailableError):
    """C has to be compiled, and there is no C compiler."""


class CacheError(NativeUnavailableError):
    """The directory of compiled files cannot be used safely."""


class CompileError(NativeUnavailableError):
    """The compiler refused the text, or took too long.

    Attributes:
        stderr: the compiler's messages.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr
