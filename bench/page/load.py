# SPDX-License-Identifier: Apache-2.0
"""The controller's processor time, and the time of a sum, with and without browsers at the page.

    python -m bench.page.load --ranks 64 --browsers 50

Phases alternate, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import itertools
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import p4reduce
from p4reduce_common.host_port import parse_host_port
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import CONTROLLER_VARIABLE, INTERFACE_VARIABLE, System

from bench.measure import cpu_seconds
from bench.program import Option, read_options, run, tell

_NUMBERS = 4096  # in each sum
_PATIENCE = 600.0  # seconds that ranks may take to join, and for a sum
_PAUSE = 0.2  # seconds between two sums
_SETTLE = 2.0  # seconds after a phase begins that are not counted


def main() -> None:
    """Measure, and print a line for each number of browsers."""
    options = read_options(
        __doc__, ranks=64, browsers=50, seconds=Option(15.0, "of each phase"), turns=2
    )
    choice = replace(choose("embedded", "local"), web=True)
    sums: list[tuple[float, float]] = []  # when it began, and how long it took
    found: dict[int, list[tuple[float, float]]] = {}
    with (
        run_directory() as directory,
        System(choice, directory, directory, options.ranks) as system,
    ):
        system.start()
        system.wait_ready()
        for rank in range(options.ranks):
            given = (system.variables(), rank, options.ranks, sums if rank == 0 else None)
            threading.Thread(target=_sum_for_ever, args=given, daemon=True).start()
        while len(sums) < 5:
            time.sleep(0.1)
        [controller] = [one for one in system.processes.children if one.name == "controller"]
        assert system.page_address is not None
        for _, browsers in itertools.product(range(options.turns), (0, 1, options.browsers)):
            with watching(system.page_address, browsers):
                time.sleep(_SETTLE)
                begun, used = time.monotonic(), cpu_seconds(controller.process.pid)
                time.sleep(options.seconds)
                share = (cpu_seconds(controller.process.pid) - used) / (time.monotonic() - begun)
                times = [seconds for when, seconds in list(sums) if when >= begun]
                # On a busy machine a phase may be too short for a sum of many ranks.
                median = statistics.median(times) if times else float("nan")
                found.setdefault(browsers, []).append((share, median))
    rows = [
        {
            "name": f"{browsers} browsers",
            "controller_of_a_core": statistics.mean(one for one, _ in phases),
            "sum_ms": 1e3 * statistics.median(one for _, one in phases),
        }
        for browsers, phases in found.items()
    ]
    what = f"{options.ranks} ranks, {options.turns} phases of {options.seconds:g} s each"
    tell(options, rows, what)


def rank_of(variables: dict[str, str], rank: int, ranks: int, job: str) -> p4reduce.Communicator:
    """Join a job of a system with these variables, in this process."""
    interface = variables[INTERFACE_VARIABLE].replace("{port}", str(rank + 1))
    controller = variables[CONTROLLER_VARIABLE]
    return p4reduce.init(rank, ranks, controller, job, _PATIENCE, interface=interface, slots=16)


def _sum_for_ever(
    variables: dict[str, str], rank: int, ranks: int, sums: list[tuple[float, float]] | None
) -> None:
    comm = rank_of(variables, rank, ranks, "load")
    mine = np.ones(_NUMBERS, np.float32)
    try:
        while True:
            begun = time.monotonic()
            comm.allreduce(mine)
            if sums is not None:
                sums.append((begun, time.monotonic() - begun))
            time.sleep(_PAUSE)
    except p4reduce.P4ReduceError:
        return  # the measurement is over, and the switch gone


@contextmanager
def watching(address: str, browsers: int) -> Iterator[None]:
    """So many connections that read the page's stream."""
    with ExitStack() as stack:
        for _ in range(browsers):
            connection = stack.enter_context(socket.create_connection(parse_host_port(address)))
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Thread(target=_read, args=(connection,), daemon=True).start()
        yield


def _read(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 16):
            pass
    except OSError:
        return  # closed


if __name__ == "__main__":
    run(main)
