# SPDX-License-Identifier: Apache-2.0
"""Adds the file's name to errors that lack it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Add a file's name to OSErrors without one: a full disk is reported for a descriptor only."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
