# SPDX-License-Identifier: Apache-2.0
"""Writes files so that a crash leaves no half-written one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from p4reduce_common.files import named


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file. After a crash it holds its former contents, or all of `data`.

    Only this user may read it. Raises OSError.
    """
    beside = path.with_name(path.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    file = os.open(beside, flags, 0o600)
    try:
        with named(path):
            os.fchmod(file, 0o600)  # of a file that was there already
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    finally:
        os.close(file)
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
