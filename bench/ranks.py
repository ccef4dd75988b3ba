# SPDX-License-Identifier: Apache-2.0
"""Worker processes over a switch and a controller of their own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.several import system_of
from p4reduce_lab.system import System, rank_variables

SWITCH_PID = "P4REDUCE_BENCH_SWITCH"
"""The variable that tells ranks the switch's process id, to measure what it takes."""


def run_ranks(
    choice: LabChoice, workers: int, script: Sequence[str], timeout: float, switches: int = 1
) -> list[Any]:
    """Run a Python script once for each rank of a job, and return the ranks' reports.

    Args:
        choice: Which switch and which network.
        workers: The world size.
        script: Its path and arguments. `--report FILE` is added: where it leaves JSON. All that
            `p4reduce.init` needs is in the environment.
        timeout: Seconds for all of it.
        switches: How many there are, side by side.

    Raises:
        UnavailableError: what was chosen cannot run here.
        LabError: a process failed, or the time is up.
    """
    with (
        run_directory() as directory,
        system_of(choice, directory, directory, workers, switches) as system,
    ):
        return run_ranks_on(system, directory, workers, script, timeout)


def run_ranks_on(
    system: System, directory: Path, workers: int, script: Sequence[str], timeout: float
) -> list[Any]:
    """As `run_ranks`, on a system that has not been started.

    Args:
        directory: for the reports.
    """
    system.start()
    system.wait_ready()
    reports = [directory / f"rank{rank}.json" for rank in range(workers)]
    variables = {**system.variables(), SWITCH_PID: str(system.switch_pid)}
    children = [
        system.processes.start(
            f"rank {rank}",
            system.rank_command(rank, [sys.executable, *script, "--report", str(report)]),
            environment={**rank_variables(rank, workers), **variables},
        )
        for rank, report in enumerate(reports)
    ]
    wait_for(system.processes, children, timeout)
    return [json.loads(report.read_text()) for report in reports]


def wait_for(processes: Processes, children: Sequence[ChildProcess], timeout: float) -> None:
    """Wait until all children have ended. Raises LabError: one failed, or the time is up."""
    deadline = time.monotonic() + timeout
    while any(child.returncode is None for child in children):
        processes.check(may_finish=children)
        if time.monotonic() > deadline:
            raise LabError(f"the ranks were not finished after {timeout:g} s")
        time.sleep(POLL)
    processes.check(may_finish=children)
