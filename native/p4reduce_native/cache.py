# SPDX-License-Identifier: Apache-2.0
"""The directory of compiled files. It belongs to this user, and is checked before any file is
trusted.

A shared object that is loaded runs with all of this process's rights. So the directory must belong
to this user, and nobody else may write to it. Each `NAME.so` has a `NAME.sha256` beside it, which
is compared before loading. So has the generated C that is kept there. That finds files that are cut
off or damaged. It does not stop an attacker with the user's own rights, who could change both.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from p4reduce_native.errors import CacheError
from p4reduce_native.file_lock import lock_file

log = logging.getLogger(__name__)

DIRECTORY_VARIABLE = "P4REDUCE_CACHE_DIR"
BUILDING = "build-"
"""How directories begin in which something is being compiled."""

_ABANDONED_AFTER = 3600.0  # seconds; no compiler is given that long
# Compiled files that are kept, of 60 KB each; the least recently used go first. Our tests have 270
# programs, and would find none of them again in a cache that is smaller.
_MOST_FILES = 512
_LOCKS = 16
_LOCK_POLL_S = 0.05


def cache_directory() -> Path:
    """Return `$P4REDUCE_CACHE_DIR`, else `p4reduce` in `$XDG_CACHE_HOME` or `~/.cache`.

    Under sudo HOME may be another user's; the present user's home is then used.
    """
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    for variable, below in (("XDG_CACHE_HOME", "."), ("HOME", ".cache")):
        base = Path(os.environ.get(variable, ""))
        if base.is_absolute() and _is_own(base):
            return base / below / "p4reduce"
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise CacheError(
            f"user {os.geteuid()} has no home directory for compiled files; "
            f"set {DIRECTORY_VARIABLE} to a directory of its own"
        ) from None
    return Path(home) / ".cache" / "p4reduce"


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


class Cache:
    """Compiled files by name.

    Args:
        directory: of the files; made if it is missing.
        suffix: with which the files' names end.
        most: files that are kept; the least recently used go first.

    Raises:
        CacheError: the directory cannot be made, belongs to somebody else, or others may write
            to it.
    """

    def __init__(self, directory: Path, suffix: str = ".so", most: int = _MOST_FILES) -> None:
        self.directory = directory
        self._suffix = suffix
        self._most = most
        try:
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=0o700)
            status = directory.lstat()
        except OSError as error:
            raise CacheError(
                f"no directory for compiled files: {directory}: {error.strerror or error}; "
                f"set {DIRECTORY_VARIABLE} to one that you may write to"
            ) from None
        if not stat.S_ISDIR(status.st_mode):
            raise CacheError(
                f"{directory} should be a directory for compiled files, and is not one"
            )
        if status.st_uid != os.geteuid():
            raise CacheError(
                f"compiled files in {directory} are not trusted: the directory belongs to user "
                f"{status.st_uid}, not to {os.geteuid()}; set {DIRECTORY_VARIABLE} to your own"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CacheError(
                f"compiled files in {directory} are not trusted: others may write there "
                f"(mode {stat.S_IMODE(status.st_mode):03o}); chmod 700 {directory}"
            )

    def look(self, name: str) -> Path | None:
        """Return the file if it exists and is intact. Changes nothing, so it takes no lock."""
        path = self._path(name)
        if not is_whole(path):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used goes first
        return path

    def find(self, name: str) -> Path | None:
        """Return the file if it exists and is intact. A damaged one is removed."""
        found = self.look(name)
        path = self._path(name)
        if found is None and path.exists():
            log.warning("%s is damaged; it is compiled again", path)
            self._remove(path)
        return found

    def find_any(self, prefix: str) -> Path | None:
        """Return an intact file whose name begins with `prefix`, the newest first."""
        paths = sorted(self.directory.glob(f"{prefix}*{self._suffix}"), key=_modified, reverse=True)
        return next((path for path in paths if self.find(path.stem) is not None), None)

    def put(self, name: str, built: Path) -> Path:
        """Take over a file that was built in `directory`, atomically."""
        path = self._path(name)
        digest = write_digest(built)
        # A reader may see the new file beside the old hash: then it compiles the same again.
        digest.replace(path.with_suffix(".sha256"))
        built.replace(path)
        self._prune()
        return path

    @contextlib.contextmanager
    def lock(self, name: str, timeout_s: float) -> Iterator[None]:
        """Let only one process compile `name`.

        If the lock is not free in time, or the file system has none, this process continues: two
        that compile do no harm.
        """
        number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % _LOCKS
        path = self.directory / f"lock-{number}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise CacheError(f"cannot write {path}: {error.strerror}") from None
        try:
            deadline = time.monotonic() + timeout_s
            while _is_busy(fd, path) and time.monotonic() < deadline:
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    def clear_abandoned(self) -> None:
        """Remove the remains of compilations that were killed an hour ago or earlier."""
        for path in self.directory.glob(f"{BUILDING}*"):
            if time.time() - _modified(path) / 1e9 > _ABANDONED_AFTER:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}{self._suffix}"

    def _prune(self) -> None:
        paths = sorted(self.directory.glob(f"*{self._suffix}"), key=_modified)
        for path in paths[: -self._most]:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        for part in (path, path.with_suffix(".sha256")):
            part.unlink(missing_ok=True)


def is_whole(path: Path) -> bool:
    """Whether a file has the hash that is stored beside it."""
    try:
        noted = path.with_suffix(".sha256").read_text().strip()
        return noted == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def write_digest(path: Path) -> Path:
    """Store the hash of a file beside it; return the path."""
    note = path.with_suffix(".sha256")
    note.write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    return note


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_busy(fd: int, path: Path) -> bool:
    try:
        lock_file(fd, path)
    except BlockingIOError:
        return True
    return False
