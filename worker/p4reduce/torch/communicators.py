# SPDX-License-Identifier: Apache-2.0
"""Where a group's communicator comes from.

Each group is a job of its own on the switch, with a name that its first rank draws: so no group
ever meets ranks of an earlier one, be it of the run before an elastic restart.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from p4reduce.communicator import Communicator, init
from p4reduce.environment import job_name, placement
from p4reduce.torch.presence import meet
from p4reduce.transport import port_name

_UNIX = "unix:"
_MAX_BASE = 40  # characters of the launcher's or user's name in that of a job

_lock = threading.Lock()
_taken: set[str] = set()


class Lease:
    """A communicator, and the switch port that it keeps busy.

    Attributes:
        comm: of the group.
    """

    def __init__(self, comm: Communicator, port: str) -> None:
        self.comm = comm
        self._port = port

    def end(self, *, orderly: bool) -> None:
        """Leave the job: when the others have all results too, or at once."""
        try:
            if orderly:
                self.comm.close()
            else:
                self.comm.__exit__(RuntimeError, None, None)
        finally:
            _release(self._port)


def open_communicator(
    store: Any,
    name: str,
    rank: int,
    size: int,
    global_rank: int,
    timeout: float,
    check: Callable[[], None] | None = None,
) -> Lease | None:
    """Meet the other ranks of a group and join a job with them.

    Args:
        store: of torch, for this alone.
        name: of the group.
        rank: of this process in the group.
        size: of the group.
        global_rank: of this process; says which port of the switch is its own.
        timeout: seconds for all that.
        check: as of `meet`.

    Returns:
        None where the switch has no way for another job: a port that is a Unix socket takes one
        at a time. All ranks of the group get None then.

    Raises:
        DistNetworkError: ranks are missing; names them.
        P4ReduceError: as `p4reduce.init`.
    """
    deadline = time.monotonic() + timeout
    # Of a subgroup, size is not that of the world; where the launcher says nothing, local ranks
    # are global ones.
    local_rank = placement(global_rank, max(global_rank + 1, size)).local_rank
    port = port_name(None, global_rank, local_rank)
    free = _take(port)
    comm = None
    try:
        words = meet(store, rank, size, json.dumps([_new_name(name), free]), timeout, check)
        told = [json.loads(word) for word in words]
        if all(possible for _, possible in told):
            left = max(deadline - time.monotonic(), 1.0)
            comm = init(rank, size, job=told[0][0], timeout=left, interface=port)
    finally:
        if comm is None and free:
            _release(port)
    return None if comm is None else Lease(comm, port)


def _take(port: str) -> bool:
    with _lock:
        if port.startswith(_UNIX) and port in _taken:
            return False
        _taken.add(port)
        return True


def _release(port: str) -> None:
    with _lock:
        _taken.discard(port)


def _new_name(group: str) -> str:
    return f"{job_name(None)[:_MAX_BASE]}/{group[:_MAX_BASE]}/{secrets.token_hex(6)}"
