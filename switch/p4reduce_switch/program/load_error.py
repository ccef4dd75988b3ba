# SPDX-License-Identifier: Apache-2.0
"""The error of a program that cannot be loaded, raised by the loader or a generator."""

from __future__ import annotations

_LONGEST_MESSAGE = 800  # characters


class LoadError(Exception):
    """The program cannot be loaded. The message names the construct and the source line.

    The message can always be encoded and has a limited length, whatever names the program has.
    """

    def __init__(self, text: str) -> None:
        text = text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} …"
        super().__init__(text.encode(errors="backslashreplace").decode())
