# SPDX-License-Identifier: Apache-2.0
"""Errors of files that say which file it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Put a file's name into the OSErrors that have none: a full disk is reported by a
    descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
