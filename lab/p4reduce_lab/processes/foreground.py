# SPDX-License-Identifier: Apache-2.0
"""A command that this one waits for, and that ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from p4reduce_common.ending import ending_signals

from p4reduce_lab.errors import Interrupted
from p4reduce_lab.processes.children import tethered

GRACE = 20.0  # seconds in which the command cleans up


class EndedError(Exception):
    """The command did not end in time, and was ended."""


def raise_on_signals() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP raise `Interrupted` in the main thread, once.

    After `nohup`, SIGHUP remains ignored.
    """
    for number in ending_signals():
        signal.signal(number, _interrupt)


def run_through(
    command: Sequence[str], timeout: float, directory: Path, *, capture: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and what it printed.

    It has a session of its own, so Ctrl-C in a terminal reaches this process alone. What leaves
    this early ends the command by SIGINT, as Ctrl-C would, and waits until it has cleaned up.

    Args:
        command: whatever its exit code.
        timeout: seconds.
        directory: to run it in.
        capture: its output; else it goes where this process's output goes.

    Raises:
        EndedError: it was not through in time.
    """
    pipe = subprocess.PIPE if capture else None
    with subprocess.Popen(
        tethered(command),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=directory,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            raise EndedError(f"{command[-1]}: not finished after {timeout:g} s") from None
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it was not reaped: its pid is its own
        process.communicate()


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once only: what follows is cleaning up, which has its own deadlines.
    for other in ending_signals():
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)
