# SPDX-License-Identifier: Apache-2.0
"""Why there is no machine code."""

from __future__ import annotations


class NativeUnavailableError(Exception):
    """There is no machine code here; the message says why and how to get it.

    A caller that catches it continues in Python.
    """


class CompilerMissingError(NativeUnavailableError):
    """Something has to be compiled, and there is no C compiler."""


class CacheError(NativeUnavailableError):
    """The directory of compiled files cannot be used safely."""


class CompileError(NativeUnavailableError):
    """The compiler refused the text, or took too long.

    Attributes:
        stderr: what the compiler said.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr
