# SPDX-License-Identifier: Apache-2.0
"""A job of an engine's ranks, on a network that they start: all ranks join, or none."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from p4reduce.communicator import Communicator
from p4reduce.errors import LaunchError, P4ReduceError
from p4reduce.initialize import init
from p4reduce.job_network import JobNetwork, begin, named
from p4reduce.meeting import Exchange, agreed
from p4reduce.variables import ALL


def join_all(
    rank: int,
    exchange: Exchange,
    engine: str,
    *,
    timeout: float,
    lease: float,
    towards: Sequence[str] = (),
) -> tuple[Communicator, JobNetwork | None]:
    """Join a job on a network that the ranks start, or that rank 0's environment names.

    All ranks call it. After an error on any rank, what has started has ended on all of them.

    Args:
        rank: of this process.
        exchange: of the engine.
        engine: the beginning of the job's name.
        timeout: as of `p4reduce.init`.
        lease: as of `job_network.begin`.
        towards: as of `job_network.begin`.

    Returns:
        The communicator, and the network to close after it, if the ranks have started one.

    Raises:
        P4ReduceError: as `begin` and `p4reduce.init`; on all ranks.
    """
    network: JobNetwork | None = None
    comm: Communicator | None = None

    def told() -> dict[str, str] | None:
        if rank or not named():
            return None
        return {name: os.environ[name] for name in ALL if os.environ.get(name)}

    everybody = agreed(rank, exchange, lambda: [told(), secrets.token_hex(6)])
    size, (given, token) = len(everybody), everybody[0]
    job, variables = f"{engine}-{token}", given

    def enter() -> None:
        nonlocal comm
        check = None if network is None else network.check
        comm = init(rank, size, job=job, timeout=timeout, network=variables, check=check)

    try:
        if given is None:
            started = begin(exchange, rank, size, towards=towards, lease=lease)
            assert started is not None, "rank 0 has no network in its environment"
            network, variables = started.network, started.variables
        agreed(rank, exchange, enter)
        assert comm is not None, "its rank has joined"
    except BaseException as error:
        cause = cause_of(error, network)
        if comm is not None:
            comm.close()
        if network is not None:
            network.close()
        if cause is not error:
            raise cause from error
        raise
    return comm, network


def cause_of(error: BaseException, network: JobNetwork | None) -> BaseException:
    """Return LaunchError if the network has ended, which is then the cause; else the error."""
    if network is not None and isinstance(error, P4ReduceError):
        try:
            network.check()
        except LaunchError as ended:
            return ended
    return error
