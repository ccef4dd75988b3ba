# SPDX-License-Identifier: Apache-2.0
"""Lab commands under way in tests, and whether they leave anything behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).parent.parent.parent
LAB = [sys.executable, "-m", "p4reduce_lab"]
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("P4REDUCE_") and name not in ("RANK", "WORLD_SIZE", "BW")
}
# As root, "auto" would take BMv2 and Mininet where they are installed.
ENVIRONMENT |= {"SWITCH": "embedded", "NET": "local"}
RUN_DIRECTORY = "p4reduce-" + 12 * "[0-9a-f]"  # as processes/rundir.py names them
DEADLINE = 280.0  # seconds; a test fails by it, and passes long before


class Launched:
    """A lab command under way, with its output in a file."""

    running: ClassVar[list[Launched]] = []

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.running.append(self)
        self._output = tmp_path / "output"
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [*LAB, *arguments],
                env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str) -> str:
        """Waits until the output has something that matches, and returns it."""
        deadline = time.monotonic() + DEADLINE
        while True:
            if found := re.search(pattern, self.output):
                return found.group()
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}"
            time.sleep(0.05)

    def wait(self) -> int:
        return self.process.wait(DEADLINE)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test if processes that have this run's mark in their environment are left."""
    mark = f"P4REDUCE_TEST_MARK={os.urandom(8).hex()}"
    name, value = mark.split("=")
    ENVIRONMENT[name] = value
    directories = set(Path("/tmp").glob(RUN_DIRECTORY))
    yield
    for launched in Launched.running:
        launched.process.kill()  # a test that failed may have left it running
        launched.process.wait()
    Launched.running.clear()
    deadline = time.monotonic() + DEADLINE
    while True:
        processes = _processes_with(mark)
        left = set(Path("/tmp").glob(RUN_DIRECTORY)) - directories
        # Another test run on this machine may have made some meanwhile: ours are those
        # that nobody uses.
        left = {directory for directory in left if not _processes_with(str(directory))}
        if not processes and not left:
            break
        assert time.monotonic() < deadline, f"left behind: {processes} {left}"
        time.sleep(0.1)
    del ENVIRONMENT[name]


def _processes_with(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in environment or text in command:
            found.append(f"{process.name}: {command}")
    return found


def pid_of(what: str, rank: int | None = None) -> int:
    """The pid of a process of this test's run, by words of its command."""
    mark = f"P4REDUCE_TEST_MARK={ENVIRONMENT['P4REDUCE_TEST_MARK']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranked = rank is None or f"RANK={rank}".encode() in variables
        if mark in variables and what in command and "tether" not in command and ranked:
            return int(process.name)
    raise AssertionError(f"no process {what!r} of rank {rank}")
