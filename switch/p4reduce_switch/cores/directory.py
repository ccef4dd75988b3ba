# SPDX-License-Identifier: Apache-2.0
"""The directory of the cores' P4Runtime sockets, which exists while the switch runs.

A switch that is killed leaves its directory behind, so the next one in the same place removes it.
The user of a directory holds a lock on it (`flock`), which ends with the process.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4reduce_common.grpc_channels import UNIX_PATH_BYTES
from p4reduce_native.file_lock import lock_file

_PREFIX = "cores-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")  # as mkdtemp makes it
_LONGEST = UNIX_PATH_BYTES - len("/cores-12345678/core15.sock")
_SOCKET = re.compile(r"core\d+\.sock")


def socket_path(directory: Path, core: int) -> Path:
    """Return the path of a core's P4Runtime socket."""
    return directory / f"core{core}.sock"


@contextlib.contextmanager
def socket_directory(beside: Path | None) -> Iterator[Path]:
    """Make a directory that only this user can open, and remove it when the block ends.

    Args:
        beside: the path beside which it is made; None: the directory for temporary files. If that
            is too long for the path of a socket, it is made in /tmp.

    Raises:
        OSError: the directory cannot be made.
    """
    place = Path(tempfile.gettempdir()) if beside is None else beside
    if len(os.fsencode(place.absolute())) > _LONGEST:
        place = Path("/tmp")
    _remove_left(place)
    path, lock = _make(place)
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def _make(place: Path) -> tuple[Path, int]:
    """Make a directory and lock it; returns the lock's descriptor as well."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    # Nobody takes it for left behind, as long as it is empty.
    lock_file(lock, path, wait=True)
    return path, lock


def _remove_left(place: Path) -> None:
    """Remove what killed switches of this user have left."""
    with contextlib.suppress(OSError):  # a user who may not list it cannot remove anything either
        for path in place.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):  # somebody else's, in use, or gone
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        # Without locks nobody knows whether it is in use.
        unused = lock_file(lock, path)
        found = list(path.iterdir())
        if unused and found and all(map(_is_socket, found)):
            _remove(path)
    finally:
        os.close(lock)


def _is_socket(path: Path) -> bool:
    return bool(_SOCKET.fullmatch(path.name)) and stat.S_ISSOCK(path.lstat().st_mode)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        for socket in path.iterdir():
            socket.unlink()
        path.rmdir()
