# SPDX-License-Identifier: Apache-2.0
"""Ranks that train over shaped links, by Gloo or by the switch.

Each rank is in a namespace with two links of the same rate, as for `p4reduce-lab compare`: Gloo's
to a bridge, p4reduce's to the embedded switch. Without a rate, all are on this machine, which
needs no root.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from p4reduce_lab.choice import choose
from p4reduce_lab.networks.shaped import BRIDGE_INTERFACE, ShapedNetwork
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.topology import LabTopology

from bench.rank import command
from bench.ranks import reports_in, wait_for

TIMEOUT = 3600.0  # seconds
WHOLE = 1 << 30  # bytes of a bucket: all of the gradient is one


def join(
    backend: str, store: str, timeout: timedelta | None = None, *, one_bucket: bool = True
) -> None:
    """Make torch's default group in a rank; it has one thread.

    `backend` and `store` are those of `run_over_links`. `one_bucket`: all of a gradient may be one,
    the first bucket included.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if one_bucket:
        dist._DEFAULT_FIRST_BUCKET_BYTES = WHOLE  # else DDP makes a first one of 1 MB
    dist.init_process_group(
        backend,
        f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timeout,
    )


def in_one_bucket(network: Any) -> Any:
    """Return DDP of a network whose gradient is all in one bucket."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        network, bucket_cap_mb=WHOLE >> 20, gradient_as_bucket_view=False
    )


def run_over_links(
    backend: str,
    function: Callable[..., Any],
    ranks: int,
    rate: float | None,
    congestion: str | None = None,
    *,
    timeout: float = TIMEOUT,
    before: Sequence[str] = (),
    **given: Any,
) -> Any:
    """Call a function once in each rank, and return what rank 0 returned.

    Args:
        backend: "gloo" or "p4reduce".
        function: of a module's top level. It gets the keywords `backend` and `store`, for `join`.
        ranks: 1 to 64.
        rate: of each link, in Mbit/s; None: there are no links.
        congestion: TCP's congestion control; None: the machine's.
        timeout: seconds for the ranks.
        before: what to put before Python's command.
        given: more keywords, which travel as JSON.

    Raises LabError, UnavailableError.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory())
        network = None
        if rate is not None:
            network = stack.enter_context(ShapedNetwork(ranks, 1000.0, congestion))
        system = None
        if backend == "p4reduce":
            choice, topology = choose("embedded", "local"), LabTopology.side_by_side(ranks)
            system = System(choice, directory, directory, topology, network)
            stack.enter_context(system)
            system.start()
            system.wait_ready()
        processes = stack.enter_context(Processes()) if system is None else system.processes
        given |= {"backend": backend, "store": str(directory / "store")}
        run = [*before, sys.executable]
        run += command(function, given, str(directory / "rank{rank}.json"))
        shared = system.variables() if system is not None else {}
        shared |= {"GLOO_SOCKET_IFNAME": BRIDGE_INTERFACE} if network is not None else {}
        children = [
            processes.start(
                f"rank {rank}",
                [*(() if network is None else network.prefix(rank)), *run],
                log=directory / f"rank{rank}.log",
                environment={**rank_variables(rank, ranks), **shared},
            )
            for rank in range(ranks)
        ]
        if network is not None:
            network.set_rate(rate)
        wait_for(processes, children, timeout)
        return reports_in(directory, 1)[0]
