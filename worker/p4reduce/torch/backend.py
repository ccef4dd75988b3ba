# SPDX-License-Identifier: Apache-2.0
"""Makes process groups for `init_process_group` and `new_group`. group.py has their calls."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from p4reduce.torch.delegate import LEASE
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.group import Collectives, raise_if_lost
from p4reduce.torch.presence import arrive
from p4reduce.torch.python_backend import group_class
from p4reduce.torch.routes import Routes


def create(options: Any, backend_options: Any) -> Collectives:
    """Make a group. torch lets all of its ranks call this.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, ranks.
        backend_options: the user's `pg_options`; there are none.

    Raises:
        DistNetworkError: ranks are missing, or no switch or controller answers; says which.
        DistBackendError: the controller refuses.
    """
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    try:
        generation = arrive(options.store, rank)
    except dist.DistNetworkError:
        raise_if_lost(ranks, LEASE)
        raise
    store = dist.PrefixStore(f"p4reduce/{generation}/", options.store)
    routes = Routes(
        *(store, rank, size, ranks, options.timeout),
        lambda within: raise_if_lost(ranks, within),
    )
    return group_class()(
        *(options.store, rank, size),
        routes=routes,
        others=OtherDevices(store, rank, size, options.timeout),
    )
