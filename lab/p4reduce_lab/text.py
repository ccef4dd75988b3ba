# SPDX-License-Identifier: Apache-2.0
"""Sentences for a terminal, wrapped between words."""

from __future__ import annotations

import shutil
import sys
import textwrap


def wrapped(text: str, indent: int = 2) -> str:
    """Return ``text`` in lines of the terminal's width, with later lines indented.

    If standard output is no terminal, the text stays one line, for grep.
    """
    if not sys.stdout.isatty():
        return text
    return textwrap.fill(
        text,
        max(40, shutil.get_terminal_size().columns),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
