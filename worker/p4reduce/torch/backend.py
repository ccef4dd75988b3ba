# SPDX-License-Identifier: Apache-2.0
"""Makes process groups for `init_process_group` and `new_group`. group.py has their calls."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from p4reduce.errors import P4ReduceError
from p4reduce.job_network import Started, begin
from p4reduce.torch import accelerators
from p4reduce.torch.delegate import LEASE
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.errors import as_torch_error
from p4reduce.torch.group import TorchCollectives, raise_if_lost
from p4reduce.torch.meeting import exchange_by
from p4reduce.torch.presence import arrive, store_answers
from p4reduce.torch.python_backend import group_class
from p4reduce.torch.routes import Routes

_ACCELERATED = "accelerated"  # of the store: on how many ranks torch has an accelerator


def create(options: Any, backend_options: Any) -> TorchCollectives:
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
    network = None if size == 1 else _network(store, rank, size, options.timeout, ranks)
    with store_answers():
        store.add(_ACCELERATED, accelerators.is_available())
    routes = Routes(
        store,
        rank,
        size=size,
        global_ranks=ranks,
        timeout=options.timeout,
        check=lambda within: raise_if_lost(ranks, within),
        network=network,
    )
    with store_answers():  # for routes, all ranks have met: they all read the same
        accelerated = store.add(_ACCELERATED, 0)
    return group_class()(
        options.store,
        rank,
        size,
        routes=routes,
        others=OtherDevices(store, rank, size, options.timeout),
        accelerated=accelerated > 0,
    )


def _network(
    store: Any, rank: int, size: int, timeout: timedelta, ranks: list[int]
) -> Started | None:
    """Return the network that the group's ranks share, started now or for an earlier group."""
    seconds = timeout.total_seconds()
    own = dist.PrefixStore("network/", store)
    exchange = exchange_by(own, rank, size, seconds, lambda: raise_if_lost(ranks, 0.0))
    master = os.environ.get("MASTER_ADDR")
    towards = [master] if master else []
    try:
        return begin(exchange, rank, size, towards=towards)
    except P4ReduceError as error:
        raise as_torch_error(error) from error
