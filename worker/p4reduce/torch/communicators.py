# SPDX-License-Identifier: Apache-2.0
"""Where a group's communicator comes from.

Each group is a job of its own on the switch, with a name that its first rank draws: so no group
ever meets ranks of an earlier one, be it of the run before an elastic restart.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from p4reduce.communicator import Communicator, init
from p4reduce.environment import job_name, placement
from p4reduce.torch.presence import meet
from p4reduce.transport import port_name

# Seconds to join a job. The ranks have just met in torch's store, whose timeout is half an hour if
# the user says nothing; none of them comes later, unless it was killed.
_JOIN = 120.0
_MAX_BASE = 40  # characters of the launcher's or user's name in that of a job


class Lease:
    """A communicator of a group.

    Attributes:
        comm: of the group.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def end(self, *, orderly: bool) -> None:
        """Leave the job: when the others have all results too, or at once."""
        if orderly:
            self.comm.close()
        else:
            self.comm.__exit__(RuntimeError, None, None)


def open_communicator(
    store: Any,
    name: str,
    rank: int,
    size: int,
    global_rank: int,
    timeout: float,
    check: Callable[[], None] | None = None,
) -> Lease:
    """Meet the other ranks of a group and join a job with them.

    Args:
        store: of torch, for this alone.
        name: of the group.
        rank: of this process in the group.
        size: of the group.
        global_rank: of this process; says which port of the switch is its own.
        timeout: seconds for all that.
        check: called time and again meanwhile; raises where it is known that some will not come.

    Raises:
        DistNetworkError: ranks are missing; names them.
        P4ReduceError: as `p4reduce.init`.
    """
    deadline = time.monotonic() + timeout
    # Of a subgroup, size is not that of the world; where the launcher says nothing, local ranks
    # are global ones.
    local_rank = placement(global_rank, max(global_rank + 1, size)).local_rank
    port = port_name(None, global_rank, local_rank)
    words = meet(store, rank, size, json.dumps(_new_name(name)), timeout, check)
    left = min(max(deadline - time.monotonic(), 1.0), _JOIN)
    job = json.loads(words[0])
    return Lease(init(rank, size, job=job, timeout=left, interface=port, check=check))


def _new_name(group: str) -> str:
    return f"{job_name(None)[:_MAX_BASE]}/{group[:_MAX_BASE]}/{secrets.token_hex(6)}"
