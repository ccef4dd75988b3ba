# SPDX-License-Identifier: Apache-2.0
"""Where a group's communicator comes from.

Each group is a job of its own on the switch, with a name that its first rank draws. So no group
ever meets ranks of an earlier one, such as those of the run before an elastic restart.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p4reduce.communicator import Communicator
from p4reduce.environment import job_name, placement
from p4reduce.initialize import init
from p4reduce.torch.presence import meet
from p4reduce.torch.statistics import count_bytes_of, keep_bytes_of
from p4reduce.transport import port_name

# Seconds to join a job. The ranks have just met in torch's store, whose timeout is half an hour if
# the user says nothing; none of them comes later, unless it was killed.
_JOIN = 120.0
# Characters: of the launcher's or user's name in that of a job, and of the ranks. With several
# switches a job's name may have 84.
_MAX_BASE = 34
_MAX_RANKS = 20


class Lease:
    """A communicator of a group.

    Attributes:
        comm: of the group.
        interface: this process's way to the switch; None: that of the network it has started.
    """

    def __init__(self, comm: Communicator, interface: str | None) -> None:
        self.comm = comm
        self.interface = interface
        count_bytes_of(comm)

    def end(self, *, orderly: bool) -> None:
        """Leave the job when the others have all results too, or at once."""
        try:
            if orderly:
                self.comm.close()
            else:
                self.comm.__exit__(RuntimeError, None, None)
        finally:
            keep_bytes_of(self.comm)


def open_communicator(
    store: Any,
    label: str,
    rank: int,
    size: int,
    global_rank: int,
    timeout: float,
    check: Callable[[], None] | None = None,
    network: Mapping[str, str] | None = None,
    interface: str | None = None,
) -> Lease:
    """Meet the other ranks of a group, and join a job with them.

    Args:
        store: of torch, for this alone.
        label: the group's ranks, for the job's name.
        rank: of this process in the group.
        size: of the group.
        global_rank: of this process; says which port of the switch is its own.
        timeout: seconds for all of it.
        check: called repeatedly meanwhile; raises if some ranks will not come.
        network: variables of the network; None: the environment's.
        interface: as for `p4reduce.init`; None: that of the global rank.

    Raises:
        DistNetworkError: ranks are missing; names them.
        P4ReduceError: as `p4reduce.init`.
    """
    deadline = time.monotonic() + timeout
    if network is None and interface is None:
        # Of a subgroup, size is not that of the world; where the launcher says nothing, local ranks
        # are global ones.
        local_rank = placement(global_rank, max(global_rank + 1, size)).local_rank
        interface = port_name(None, global_rank, local_rank)
    job = meet(store, rank, size, new_name(label), timeout, check)
    left = min(max(deadline - time.monotonic(), 1.0), _JOIN)
    comm = init(
        rank, size, job=job, timeout=left, interface=interface, check=check, network=network
    )
    return Lease(comm, interface)


def label_of(global_ranks: Sequence[int]) -> str:
    """Return the ranks of a job for its name: "ranks 0-3,6".

    Args:
        global_ranks: of the group, ascending or not; empty: all ranks.
    """
    if not global_ranks:
        return "all ranks"
    runs: list[list[int]] = []
    for rank in sorted(global_ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    shown = ",".join("-".join(map(str, run)) for run in runs)
    if len(shown) > _MAX_RANKS:
        shown = f"{shown[: _MAX_RANKS - 1]}…"
    return f"rank {shown}" if len(global_ranks) == 1 else f"ranks {shown}"


def new_name(label: str) -> str:
    """Return a job's name that no other process group has, with `label` in it."""
    return f"{job_base()}: {label}, {secrets.token_hex(4)}"


def job_base() -> str:
    """Return how the names of this run's jobs begin: the user's or the launcher's name."""
    return job_name(None)[:_MAX_BASE]
