# SPDX-License-Identifier: Apache-2.0
"""Makes the backend's process groups: for `init_process_group` and for `new_group`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from p4reduce.errors import P4ReduceError
from p4reduce.torch.communicators import Lease, open_communicator
from p4reduce.torch.delegate import Gloo
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.errors import as_torch_error
from p4reduce.torch.group import P4ReduceGroup
from p4reduce.torch.presence import arrive


def create(options: Any, backend_options: Any) -> P4ReduceGroup:
    """Make a group; all of its ranks call this, as torch sees to.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, ranks.
        backend_options: what the user gave as `pg_options`; there are none to give.

    Raises:
        DistNetworkError: ranks are missing, or no switch or controller answers; says which.
        DistBackendError: the controller refuses.
    """
    rank, size = options.group_rank, options.group_size
    deadline = time.monotonic() + options.timeout.total_seconds()
    generation = arrive(options.store, rank)
    store = dist.PrefixStore(f"p4reduce/{generation}/", options.store)
    ranks = list(options.global_ranks_in_group)
    lease: Lease | None = None
    if size > 1:
        try:
            lease = open_communicator(
                *(store, options.group_id, rank, size, ranks[rank] if ranks else rank),
                options.timeout.total_seconds(),
            )
        except P4ReduceError as error:
            raise as_torch_error(error) from error
    try:
        left = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
        gloo = Gloo(dist.PrefixStore("gloo/", store), rank, size, left)
        gloo.set_timeout(options.timeout)
    except BaseException:
        if lease is not None:
            lease.end(orderly=False)
        raise
    return P4ReduceGroup(
        *(options.store, rank, size),
        lease=lease,
        global_ranks=ranks,
        gloo=gloo,
        others=OtherDevices(store, rank, size, options.timeout),
        timeout=options.timeout,
    )
