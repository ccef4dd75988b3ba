# SPDX-License-Identifier: Apache-2.0
"""Child processes, each with a log: started, watched together, ended in reverse order.

A child never outlives this process (see `tether`), and runs in a session of its own, so that Ctrl-C
in a terminal reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4reduce_common.polling import holds_within

from p4reduce_lab.errors import LabError
from p4reduce_lab.processes import tether

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
POLL = 0.02  # seconds between two looks at the children
TAIL_LINES = 12


def tethered(command: Sequence[str]) -> list[str]:
    """``command``, started such that it dies with this process. Start it from the main thread:
    the kernel counts the end of the thread that started it as the parent's end."""
    return [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command]


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or that there are none."""
    try:
        text = log.read_text(errors="replace").rstrip().splitlines()
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text[-lines:]) or f"(the log is empty{_why_empty(log)})"


def _why_empty(log: Path) -> str:
    return "" if os.statvfs(log).f_bavail else ": its disk is full"


def ending(code: int) -> str:
    """Return in words how a process ended, from its ``returncode``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@dataclass(frozen=True)
class ChildProcess:
    """One process with its name for people, and its log where it has one."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def returncode(self) -> int | None:
        """None while it runs; as in :mod:`subprocess`, negative after a signal."""
        if self.process.returncode is not None:
            return self.process.returncode
        # Not poll(): that would reap it, and its pid, which names its group, could be taken
        # by a stranger before the group is ended.
        state = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def end(self, grace: float) -> None:
        """SIGTERM, and ``grace`` seconds later SIGKILL, for it and what is left of its group;
        without any grace SIGKILL at once."""
        if self.process.returncode is not None:
            return
        if self.returncode is None and grace > 0:
            os.killpg(self.process.pid, signal.SIGTERM)
            holds_within(grace, lambda: self.returncode is not None, POLL)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def failure(self) -> str:
        """Return how it ended, and the end of its log."""
        code = self.returncode
        how = "still running" if code is None else ending(code)
        text = f"{self.name}: {how}"
        if self.log is not None:
            text += f"\n  the end of {self.log}:\n"
            text += "\n".join(f"    {line}" for line in tail(self.log).splitlines())
        return text


class ChildFailedError(LabError):
    """A child process ended unexpectedly, or with an error."""

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        super().__init__("\n".join(child.failure() for child in children))
        self.children = tuple(children)


class Processes:
    """The child processes of one run. Leaving the ``with`` block ends them all."""

    def __init__(self) -> None:
        self.children: list[ChildProcess] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> ChildProcess:
        """Starts ``command``. Its output goes to ``log`` if given, else to ``stdout`` (a
        :mod:`subprocess` constant), both streams alike. ``environment`` adds to this process's."""
        output: int | None = stdout
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        finally:
            if log is not None and output is not None:
                os.close(output)
        child = ChildProcess(name, process, log)
        self.children.append(child)
        return child

    def check(self, *, may_finish: Sequence[ChildProcess] = ()) -> None:
        """Raises ChildFailedError if a child has ended; those in ``may_finish`` may with code 0."""
        failed = [
            child
            for child in self.children
            if (code := child.returncode) is not None and (code != 0 or child not in may_finish)
        ]
        if failed:
            raise ChildFailedError(failed)

    def kill(self, child: ChildProcess) -> None:
        """SIGKILL for one child and what it started; :meth:`check` then knows nothing of it."""
        child.end(grace=0.0)
        self.children.remove(child)

    def end(self, grace: float = GRACE) -> None:
        """Ends the children, last started first, with SIGTERM and after ``grace`` seconds in all
        with SIGKILL, each with the processes it started (of its group)."""
        deadline = time.monotonic() + grace
        for child in reversed(self.children):
            child.end(max(0.0, deadline - time.monotonic()))
        self.children.clear()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
