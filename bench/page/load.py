# SPDX-License-Identifier: Apache-2.0
"""The controller's processor time, and the time of a sum, with and without browsers at the page.

    python -m bench.page.load --ranks 64 --browsers 50

Phases alternate, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import p4reduce
from p4reduce.variables import CONTROLLER, INTERFACE
from p4reduce_common.host_port import parse_host_port
from p4reduce_lab.system import System

from bench.measure import cpu_seconds, in_turns
from bench.program import Option, read_options, run, tell
from bench.ranks import running

_NUMBERS = 4096  # in each sum
_PATIENCE = 600.0  # seconds that ranks may take to join, and for a sum
_PAUSE = 0.2  # seconds between two sums
_SETTLE = 2.0  # seconds after a phase begins that are not counted


def main() -> None:
    """Measure, and print a line for each number of browsers."""
    options = read_options(
        __doc__, ranks=64, browsers=50, seconds=Option(15.0, "of each phase"), turns=2
    )
    sums: list[tuple[float, float]] = []  # when it began, and how long it took
    with running(options.ranks, web=True) as (system, _):
        for rank in range(options.ranks):
            given = (system, rank, options.ranks, sums if rank == 0 else [])
            threading.Thread(target=_sum_for_ever, args=given, daemon=True).start()
        while len(sums) < 5:
            time.sleep(0.1)
        controller = system.controller
        assert controller is not None

        def phase(browsers: int) -> tuple[float, float]:
            """The controller's share of a core, and the median sum."""
            with watching(system.page_address, browsers):
                time.sleep(_SETTLE)
                begun, used = time.monotonic(), cpu_seconds(controller.process.pid)
                time.sleep(options.seconds)
                share = (cpu_seconds(controller.process.pid) - used) / (time.monotonic() - begun)
                times = [seconds for when, seconds in list(sums) if when >= begun]
                # On a busy machine a phase may be too short for a sum of many ranks.
                return share, statistics.median(times) if times else float("nan")

        ways = {str(count): partial(phase, count) for count in (0, 1, options.browsers)}
        found = in_turns(ways, options.turns)
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


def rank_of(system: System, rank: int, ranks: int, job: str) -> p4reduce.Communicator:
    """Join a job of a system in this process."""
    variables = system.variables()
    interface = variables[INTERFACE].replace("{port}", str(rank + 1))
    controller = variables[CONTROLLER]
    return p4reduce.init(rank, ranks, controller, job, _PATIENCE, interface=interface, slots=16)


def _sum_for_ever(system: System, rank: int, ranks: int, sums: list[tuple[float, float]]) -> None:
    comm = rank_of(system, rank, ranks, "load")
    mine = np.ones(_NUMBERS, np.float32)
    try:
        while True:
            begun = time.monotonic()
            comm.allreduce(mine)
            sums.append((begun, time.monotonic() - begun))
            time.sleep(_PAUSE)
    except p4reduce.P4ReduceError:
        return  # the measurement is over, and the switch gone


@contextmanager
def watching(address: str | None, browsers: int) -> Iterator[None]:
    """So many connections that read the page's stream, at its address."""
    assert address is not None

    def read(connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except OSError:
            return  # closed

    with ExitStack() as stack:
        for _ in range(browsers):
            connection = stack.enter_context(socket.create_connection(parse_host_port(address)))
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Thread(target=read, args=(connection,), daemon=True).start()
        yield


if __name__ == "__main__":
    run(main)
