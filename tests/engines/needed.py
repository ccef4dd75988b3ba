# SPDX-License-Identifier: Apache-2.0
"""What a test of an engine needs, by name, and the processes that it must not leave behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 250.0  # seconds; a test fails by it, and passes long before
_KEPT = ("P4REDUCE_CACHE_DIR", "P4REDUCE_CFLAGS")


def needs(
    *, programs: tuple[str, ...] = (), packages: tuple[str, ...] = ()
) -> pytest.MarkDecorator:
    """Skip where a program or a package is missing; the reason names it."""
    lacking = [name for name in programs if shutil.which(name) is None]
    lacking += [name for name in packages if not _is_there(name)]
    return pytest.mark.skipif(bool(lacking), reason=f"not installed: {', '.join(lacking)}")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a package that it would be in
        return False


@contextmanager
def marked() -> Iterator[dict[str, str]]:
    """Give an environment for processes; fail if one that has it is left afterwards."""
    mark = f"P4REDUCE_TEST_MARK={os.urandom(8).hex()}"
    name, value = mark.split("=")
    inherited = {
        key: text
        for key, text in os.environ.items()
        if key in _KEPT or not key.startswith(("P4REDUCE_", "OMPI_", "PMIX_"))
    }
    yield {**inherited, name: value}
    deadline = time.monotonic() + 60.0
    while left := marked_processes(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def marked_processes(mark: str) -> dict[int, str]:
    """The processes with this in their environment, and their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = command
    return {pid: command for pid, command in found.items() if command}


def pid_of(environment: dict[str, str], words: str) -> int:
    """The pid of the process whose command has these words, once it is there."""
    mark = f"P4REDUCE_TEST_MARK={environment['P4REDUCE_TEST_MARK']}"
    deadline = time.monotonic() + DEADLINE
    while True:
        for pid, command in marked_processes(mark).items():
            if words in command and "tether" not in command:
                return pid
        assert time.monotonic() < deadline, f"no process {words!r}"
        time.sleep(0.02)
