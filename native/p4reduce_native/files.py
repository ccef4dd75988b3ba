# SPDX-License-Identifier: Apache-2.0
"""Reads files that a user names. A FIFO would block, and a device may have no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: str | os.PathLike[str], most: int = -1) -> tuple[bytes, int]:
    """Read a regular file without blocking.

    Args:
        path: of the file.
        most: the largest number of bytes to read; -1: all.

    Returns:
        The bytes, and the file's mode.

    Raises:
        OSError: it cannot be read, or is no regular file; `strerror` says what it is.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a Unix socket cannot be opened at all
            raise
        raise _refusal(path, Path(path).stat().st_mode) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _refusal(path, mode)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most), mode
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """Read a text file. Raises OSError as `read_file`, and UnicodeDecodeError."""
    return read_file(path)[0].decode("utf-8")


def _refusal(path: str | os.PathLike[str], mode: int) -> OSError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return OSError(errno.EINVAL, f"it is {kind}, and a file is needed", os.fspath(path))
