# SPDX-License-Identifier: Apache-2.0
"""Sentences for a terminal: wrapped between words, where the terminal itself would break them."""

from __future__ import annotations

import shutil
import sys
import textwrap


def wrapped(text: str, indent: int = 2) -> str:
    """``text`` in lines of the terminal's width, those after the first indented by so many spaces;
    where standard output is no terminal, as it is: lines are for grep there."""
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
