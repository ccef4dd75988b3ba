# SPDX-License-Identifier: Apache-2.0
"""Makes process groups for `init_process_group` and `new_group`. group.py has their calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from p4reduce.job_network import Started, begin
from p4reduce.torch import accelerators
from p4reduce.torch.delegate import LEASE
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.errors import torch_errors
from p4reduce.torch.group import TorchCollectives, UnregisteredGroup, ours, raise_if_lost
from p4reduce.torch.meeting import exchange_by
from p4reduce.torch.presence import arrive
from p4reduce.torch.python_backend import group_class
from p4reduce.torch.routes import Formed, Routes
from p4reduce.torch.store import ask

_ACCELERATED = "accelerated"  # of the store: on how many ranks torch has an accelerator


def create(options: Any, backend_options: Any) -> TorchCollectives:
    """Make a group. torch lets all of its ranks call this.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, ranks.
        backend_options: the `pg_options`: None, or what `reform` gives.

    Raises:
        DistNetworkError: ranks are missing, or no switch or controller answers; says which.
        DistBackendError: the controller refuses.
    """
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    seconds = options.timeout.total_seconds()
    try:
        generation = arrive(options.store, rank, seconds, lambda: raise_if_lost(ranks, 0.0))
    except dist.DistNetworkError:
        raise_if_lost(ranks, LEASE)
        raise
    store = dist.PrefixStore(f"p4reduce/{generation}/", options.store)
    return make_group(
        store,
        rank,
        size,
        ranks,
        options.timeout,
        check=lambda within: raise_if_lost(ranks, within),
        network=None if size == 1 else _network(store, rank, size, options.timeout, ranks),
        interface=_interface(backend_options),
        formed=backend_options if isinstance(backend_options, Formed) else None,
    )


def _interface(backend_options: Any) -> str | None:
    """Return this process's way to the switch, if its first rank was another one."""
    if isinstance(backend_options, Formed):
        return backend_options.interface
    world = ours(dist.group.WORLD) if dist.is_initialized() else None
    return None if world is None else world.interface


def make_group(
    store: Any,
    rank: int,
    size: int,
    ranks: Sequence[int],
    timeout: timedelta,
    *,
    check: Callable[[float], None],
    network: Started | None = None,
    interface: str | None = None,
    replicas: bool = False,
    formed: Formed | None = None,
) -> TorchCollectives:
    """Make a group of ranks that share a store. All of them call this.

    Args:
        store: of torch, for this group and this time alone.
        rank: of this process in the group.
        size: of the group.
        ranks: global ranks of the group's; empty where they are the same numbers.
        timeout: of making it, and of collectives that have none of their own.
        check: as for `Routes`.
        network: as for `Routes`.
        interface: as for `Routes`.
        replicas: whether ranks come and go, and a group is soon replaced by another one. Torch's
            registries do not know it then, and Gloo is connected beside the switch.
        formed: as for `Routes`.

    Raises:
        DistNetworkError, DistBackendError: as `create`.
    """

    def added(number: int) -> int:
        return ask(
            store,
            lambda store: int(store.add(_ACCELERATED, number)),
            timeout.total_seconds(),
            lambda: check(0.0),
        )

    added(accelerators.is_available())
    routes = Routes(
        store,
        rank,
        size=size,
        global_ranks=ranks,
        timeout=timeout,
        check=check,
        network=network,
        interface=interface,
        gloo_beside=replicas,
        formed=formed,
    )
    accelerated = added(0)  # for routes, all ranks have met: they all read the same
    kind = UnregisteredGroup if replicas else group_class()
    return kind(
        store,
        rank,
        size,
        routes=routes,
        others=OtherDevices(store, rank, size, timeout),
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
    with torch_errors():
        return begin(exchange, rank, size, towards=towards)
