# SPDX-License-Identifier: Apache-2.0
"""Ranks that train over shaped links, by Gloo or by the switch.

Each rank is in a namespace with two links of the same rate, as for `p4reduce-lab compare`: Gloo's
to a bridge, p4reduce's to the embedded switch. Without a rate, all are on this machine, which
needs no root.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.networks.shaped import BRIDGE_INTERFACE, ShapedNetwork
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System, rank_variables

from bench.ranks import wait_for

TIMEOUT = 3600.0  # seconds


def run_over_links(
    backend: str,
    script: Sequence[str],
    ranks: int,
    rate: float | None,
    congestion: str | None = None,
    *,
    timeout: float = TIMEOUT,
    before: Sequence[str] = (),
) -> Any:
    """Run a Python script once for each rank, and return what rank 0 reports.

    Args:
        backend: "gloo" or "p4reduce".
        script: Its path and arguments. These are added: the backend, `--rank`, `--ranks`,
            `--store` (a file for torch's rendezvous) and `--report` (where rank 0 leaves JSON).
        ranks: 1 to 64.
        rate: of each link, in Mbit/s; None: there are no links.
        congestion: TCP's congestion control; None: the machine's.
        timeout: seconds for the ranks.
        before: what to put before Python's command.

    Raises:
        UnavailableError: there can be no such network here.
        LabError: a process failed, or the time is up.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory())
        network = None
        if rate is not None:
            network = stack.enter_context(ShapedNetwork(ranks, 1000.0, congestion))
        system = None
        if backend == "p4reduce":
            choice = choose("embedded", "local")
            system = stack.enter_context(System(choice, directory, directory, ranks, network))
            system.start()
            system.wait_ready()
        processes = stack.enter_context(Processes()) if system is None else system.processes
        report = directory / "report.json"
        children = []
        for rank in range(ranks):
            command = [*before, sys.executable, *script, backend]
            command += ["--rank", str(rank), "--ranks", str(ranks)]
            command += ["--store", str(directory / "store"), "--report", str(report)]
            variables = rank_variables(rank, ranks)
            variables |= {} if network is None else {"GLOO_SOCKET_IFNAME": BRIDGE_INTERFACE}
            variables |= system.variables() if system is not None else {}
            children.append(
                processes.start(
                    f"rank {rank}",
                    [*(() if network is None else network.prefix(rank)), *command],
                    log=directory / f"rank{rank}.log",
                    environment=variables,
                )
            )
        if network is not None:
            network.set_rate(rate)
        wait_for(processes, children, timeout)
        return json.loads(report.read_text())
