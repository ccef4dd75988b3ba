# SPDX-License-Identifier: Apache-2.0
"""Certificates and keys in environment variables, for hosts without shared files."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

_BEGIN = "-----BEGIN "


def in_a_file(value: str | None) -> str | None:
    """Return a path as it is, or the path of a file with the given PEM text.

    Text may stand before the PEM blocks, as OpenSSL's tools write it: their readers skip that. So
    it is no path, and no message about a path that cannot be read shows a key.

    OpenSSL reads certificates from files only. On Linux the file is in memory, so a key is on no
    disk and ends with the process, however that ends. Elsewhere the file and its directory are
    private to this user, and are removed at the interpreter's exit.
    """
    if value is None or _BEGIN not in value:
        return value
    return _in_memory(value) if sys.platform == "linux" else _on_disk(value, os.getpid())


@functools.cache
def _in_memory(text: str) -> str:
    file = os.memfd_create("p4reduce-pem", os.MFD_CLOEXEC)
    os.fchmod(file, 0o600)
    with open(file, "w", closefd=False) as opened:
        opened.write(text)
    return f"/proc/self/fd/{file}"


@functools.cache
def _on_disk(text: str, process: int) -> str:
    # By the process as well: a forked one must not use what its parent takes away.
    handle, file = tempfile.mkstemp(".pem", dir=_directory(process))  # mode 0600
    with os.fdopen(handle, "w") as opened:
        opened.write(text)
    return file


@functools.cache
def _directory(process: int) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="p4reduce-pem-"))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
