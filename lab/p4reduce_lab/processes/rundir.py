# SPDX-License-Identifier: Apache-2.0
"""The places of a run: a temporary directory for sockets, and a permanent one for results."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p4reduce_native.file_lock import lock_file

from p4reduce_lab.errors import LabError
from p4reduce_lab.processes import janitor

# An AF_UNIX address holds 108 bytes with its terminating zero, and $TMPDIR may be long.
SOCKET_ROOT = Path("/tmp")
LOCK_FILE = ".lock"  # held by the run that has the directory; has its pid
JANITOR_TIMEOUT = 20.0  # seconds


@contextmanager
def removed_afterwards(*remains: str) -> Iterator[None]:
    """Have things removed when the block is left, and also when this process is killed.

    A janitor process of its own session does it. It starts before the block: from the moment when
    there is something to remove, there is somebody to remove it.

    Args:
        remains: absolute paths of directories, and names of network interfaces.
    """
    command = [sys.executable, "-I", "-S", janitor.__file__, *remains]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdin is not None
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(JANITOR_TIMEOUT)


@contextmanager
def run_directory() -> Iterator[Path]:
    """A new private directory for sockets and scratch files under /tmp, `removed_afterwards`."""
    directory = SOCKET_ROOT / f"p4reduce-{secrets.token_hex(6)}"
    with removed_afterwards(str(directory)):
        directory.mkdir(mode=0o700)
        yield directory


@contextmanager
def results_directory(path: Path, *, replace: tuple[str, ...]) -> Iterator[Path]:
    """Makes ``path`` and holds it for this run alone.

    What an earlier run left there under the glob patterns ``replace`` is removed first, so that
    nobody takes an old result for one of a run that failed.

    Raises:
        LabError: another run holds the directory, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LabError(f"cannot write results to {path}: {error.strerror}") from error
    try:
        try:
            lock_file(lock, path / LOCK_FILE)
        except BlockingIOError:
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            raise LabError(
                f"{path} is in use by another run (pid {holder}): "
                "wait for it, or choose another directory with --output"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        for pattern in replace:
            for stale in path.glob(pattern):
                stale.unlink()
        yield path
    finally:
        os.close(lock)
