# SPDX-License-Identifier: Apache-2.0
"""Removes the remains of a run when it ends, however it ends.

Used as a script: ``python -I -S janitor.py DIRECTORY…`` with standard input a pipe whose other end
only the run holds. When the run closes the pipe, or the kernel does so because the run was killed,
the directories are removed. So there is one way of cleaning up, and SIGKILL takes it too.

``python -I -S janitor.py --shared DIRECTORY`` makes the directory, writes a line, and removes it
only where no other janitor is there for it: several runs share it, and the last one's removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

ATTEMPTS = 20
PAUSE = 0.1  # seconds


def main() -> None:
    """Waits for the end of standard input, then removes the directories named."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if sys.argv[1] == "--shared":
        directory = Path(sys.argv[2])
        lock = hold(directory)
        os.write(1, b"held\n")
        sys.stdin.buffer.read()
        if is_last(lock):
            remove(directory)
        return
    sys.stdin.buffer.read()
    for directory in map(Path, sys.argv[1:]):
        remove(directory)


def hold(directory: Path) -> int:
    """Make a private directory if it is missing, and hold it; return the lock.

    Raises PermissionError: the directory is another user's.
    """
    while True:
        # Its last holder may remove it at any moment before it is held here.
        with contextlib.suppress(FileNotFoundError):
            directory.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
            except OSError as error:
                why = f"{directory} cannot be locked ({error.strerror})"
                print(f"p4reduce: {why}: it stays when its runs have ended", file=sys.stderr)
            held = os.fstat(lock)
            if held.st_uid != os.getuid():
                raise PermissionError(f"{directory} is another user's")
            if directory.stat().st_ino == held.st_ino:
                return lock
            os.close(lock)


def is_last(lock: int) -> bool:
    """Release a directory; return whether nobody else holds it."""
    # A shared lock that becomes exclusive in one step would keep two that end at once from it.
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False  # another holds it, or there are no locks here that would say so


def remove(directory: Path) -> None:
    """Remove a directory, with repeated attempts for a while."""
    # Tethered processes are dying at the same moment and may still be writing.
    for _ in range(ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
