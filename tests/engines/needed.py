# SPDX-License-Identifier: Apache-2.0
"""What a test of an engine needs, by name, and the processes and sockets that it must not leave."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from bound_sockets import BoundSockets

ROOT = Path(__file__).parents[2]
DEADLINE = 250.0  # seconds; a test fails by it, and passes long before
_sockets: dict[str, BoundSockets] = {}  # by the marks of their processes
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
    """Give an environment for processes; fail if one that has it, or its socket, is left."""
    mark = f"P4REDUCE_TEST_MARK={os.urandom(8).hex()}"
    name, value = mark.split("=")
    inherited = {
        key: text
        for key, text in os.environ.items()
        if key in _KEPT or not key.startswith(("P4REDUCE_", "OMPI_", "PMIX_"))
    }
    environment = {**inherited, name: value}
    sockets = _sockets[mark] = BoundSockets(lambda: marked_processes(mark))
    sockets.start()
    try:
        yield environment
        nothing_is_left(environment)
    finally:
        sockets.stop()
        del _sockets[mark]


def mark_of(environment: Mapping[str, str]) -> str:
    """What all processes with an environment of `marked` have in theirs."""
    return f"P4REDUCE_TEST_MARK={environment['P4REDUCE_TEST_MARK']}"


def nothing_is_left(environment: Mapping[str, str], words: tuple[str, ...] = ("",)) -> None:
    """Wait until there is none of the processes with one of these words in their commands.

    None of the sockets that they had bound may be left either. Raises AssertionError.
    """
    mark = mark_of(environment)
    deadline = time.monotonic() + DEADLINE
    while left := left_of(mark, words):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def wait_for_socket(environment: Mapping[str, str], words: str) -> None:
    """Wait until a process whose command has these words has bound a socket.

    Then its end is checked by this socket too.
    """
    deadline = time.monotonic() + DEADLINE
    while not _sockets[mark_of(environment)].seen((words,)):
        assert time.monotonic() < deadline, f"no socket of {words!r}"
        time.sleep(0.1)


def sockets_seen(environment: Mapping[str, str]) -> list[str]:
    """The sockets that processes with this environment have bound so far, with their commands."""
    return _sockets[mark_of(environment)].seen()


def left_of(mark: str, words: tuple[str, ...]) -> list[str]:
    processes = [
        f"{pid} {command}"
        for pid, command in marked_processes(mark).items()
        if any(word in command for word in words)
    ]
    return processes + _sockets[mark].left(words)


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
    mark = mark_of(environment)
    deadline = time.monotonic() + DEADLINE
    while True:
        for pid, command in marked_processes(mark).items():
            if words in command and "tether" not in command:
                return pid
        assert time.monotonic() < deadline, f"no process {words!r}"
        time.sleep(0.02)
