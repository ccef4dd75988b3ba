# SPDX-License-Identifier: Apache-2.0
"""Worker processes over a switch and a controller of their own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.several import system_of
from p4reduce_lab.system import System, rank_variables

from bench.rank import command

SWITCH_PID = "P4REDUCE_BENCH_SWITCH"
"""The variable that tells ranks the switch's process id, to measure what it takes."""


def run_ranks(
    choice: LabChoice,
    workers: int,
    function: Callable[..., Any],
    timeout: float,
    *,
    switches: int = 1,
    **given: Any,
) -> list[Any]:
    """Call a function once in each rank of a job, and return what the ranks returned.

    Args:
        choice: Which switch and which network.
        workers: The world size.
        function: of a module's top level. All that `p4reduce.init` needs is in its environment.
        timeout: Seconds for all of it.
        switches: How many there are, side by side.
        given: The function's keywords. They travel as JSON, and so does what it returns.

    Raises:
        UnavailableError: what was chosen cannot run here.
        LabError: a process failed, or the time is up.
    """
    with (
        run_directory() as directory,
        system_of(choice, directory, directory, workers, switches) as system,
    ):
        return run_ranks_on(system, directory, workers, function, timeout, **given)


def run_ranks_on(
    system: System,
    directory: Path,
    workers: int,
    function: Callable[..., Any],
    timeout: float,
    **given: Any,
) -> list[Any]:
    """As `run_ranks`, on a system that has not been started.

    Args:
        directory: for the reports.
    """
    system.start()
    system.wait_ready()
    children = start_ranks(system, directory, workers, function, given)
    wait_for(system.processes, children, timeout)
    return reports_in(directory, workers)


def start_ranks(
    system: System,
    directory: Path,
    workers: int,
    function: Callable[..., Any],
    given: dict[str, Any],
    environment: dict[str, str] | None = None,
) -> list[ChildProcess]:
    """Start the ranks on a system that is ready; see `run_ranks`."""
    variables = {**system.variables(), SWITCH_PID: str(system.switch_pid), **(environment or {})}
    run = [sys.executable, *command(function, given, str(directory / "rank{rank}.json"))]
    return [
        system.processes.start(
            f"rank {rank}",
            system.rank_command(rank, run),
            environment={**rank_variables(rank, workers), **variables},
        )
        for rank in range(workers)
    ]


def reports_in(directory: Path, workers: int) -> list[Any]:
    """Return what ranks have left in a folder."""
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(workers)]


def wait_for(processes: Processes, children: Sequence[ChildProcess], timeout: float) -> None:
    """Wait until all children have ended. Raises LabError: one failed, or the time is up."""
    deadline = time.monotonic() + timeout
    while any(child.returncode is None for child in children):
        processes.check(may_finish=children)
        if time.monotonic() > deadline:
            raise LabError(f"the ranks were not finished after {timeout:g} s")
        time.sleep(POLL)
    processes.check(may_finish=children)
