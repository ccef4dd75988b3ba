# SPDX-License-Identifier: Apache-2.0
"""Worker processes over switches and a controller of their own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.topology import LabTopology

from bench.rank import command

SWITCH_PID = "P4REDUCE_BENCH_SWITCH"
"""The variable that tells ranks the switch's process id, to measure what it takes."""

TIMEOUT = 600.0  # seconds, for all that ranks do


@contextmanager
def running(
    workers: int,
    *,
    switch: str = "embedded",
    network: str = "local",
    bandwidth: float | None = None,
    switches: LabTopology | int = 1,
    uplinks: float | None = None,
    web: bool = False,
) -> Iterator[tuple[System, Path]]:
    """Start switches and a controller; give them, ready, and a folder.

    Args:
        workers: ports.
        switch, network: as of `choose`.
        bandwidth: of each link in Mbit/s, which makes the network Mininet's; None: no links.
        switches: so many side by side, or a tree.
        uplinks: of a tree, in Mbit/s.
        web: whether the controller serves the live page.

    Raises:
        UnavailableError: what was chosen cannot run here.
    """
    network = network if bandwidth is None else "mininet"
    choice = replace(choose(switch, network, bandwidth=bandwidth), web=web)
    topology = switches
    if isinstance(topology, int):
        topology = LabTopology.side_by_side(workers, topology)
    with (
        run_directory() as directory,
        System(choice, directory, directory, topology, uplinks=uplinks) as system,
    ):
        system.start()
        system.wait_ready()
        yield system, directory


def run_ranks(
    function: Callable[..., Any],
    workers: int,
    *,
    switch: str = "embedded",
    bandwidth: float | None = None,
    switches: LabTopology | int = 1,
    uplinks: float | None = None,
    **given: Any,
) -> list[Any]:
    """Call a function once in each rank of a job, and return what the ranks returned.

    Args:
        function: of a module's top level. All that `p4reduce.init` needs is in its environment.
        workers: the world size.
        switch, bandwidth, switches, uplinks: see `running`.
        given: the function's keywords. They travel as JSON, and so does what it returns.

    Raises:
        UnavailableError: what was chosen cannot run here.
        LabError: a process failed, or the time is up.
    """
    place = {"switch": switch, "bandwidth": bandwidth, "switches": switches, "uplinks": uplinks}
    with running(workers, **place) as (system, directory):  # type: ignore[arg-type]
        children = start_ranks(system, directory, workers, function, given)
        wait_for(system.processes, children)
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


def wait_for(
    processes: Processes, children: Sequence[ChildProcess], timeout: float = TIMEOUT
) -> None:
    """Wait until all children have ended. Raises LabError: one failed, or the time is up."""
    deadline = time.monotonic() + timeout
    while any(child.returncode is None for child in children):
        processes.check(may_finish=children)
        if time.monotonic() > deadline:
            raise LabError(f"the ranks were not finished after {timeout:g} s")
        time.sleep(POLL)
    processes.check(may_finish=children)
