# SPDX-License-Identifier: Apache-2.0
"""A group's routes to the other ranks: one for the script's calls, others for callbacks.

Ranks have to call collectives in the same order. A script does, and so does each of the threads
that complete futures (threads.py); but which of them is faster differs from rank to rank. With one
route for both, the second round of PowerSGD's bucket 0 would meet the first one of bucket 1. So
what is called from a callback has a job of its own on the switch and a Gloo group of its own, which
the ranks make when they first need it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from p4reduce.communicator import Communicator
from p4reduce.errors import P4ReduceError
from p4reduce.job_network import Started
from p4reduce.torch.call_order import CallOrder
from p4reduce.torch.channel import Channel
from p4reduce.torch.communicators import Lease, label_of, open_communicator
from p4reduce.torch.delegate import LEASE, GlooDelegate
from p4reduce.torch.errors import as_torch_error
from p4reduce.torch.threads import current_level

# Seconds for the inner Gloo group to connect; the ranks have just met on the switch. Gloo waits for
# a rank that was killed since then, and cannot be interrupted. A busy machine may need longer. So
# the ranks try again if all of them are still on the switch.
CONNECT_TIMEOUT = 20.0
CONNECT_ATTEMPTS = 3


@dataclass(frozen=True)
class Formed:
    """A communicator that is there before its process group: `init_process_group(pg_options=)`.

    Attributes:
        comm: of the group's ranks.
        interface: as of `Lease`.
    """

    comm: Communicator
    interface: str | None


@dataclass(frozen=True)
class Route:
    """One route to the others.

    Attributes:
        lease: the communicator; None: there is none, and all goes to Gloo.
        channel: the route through the switch; None as well then.
        gloo: the inner group.
        order: of the calls, those of the channel included.
    """

    lease: Lease | None
    channel: Channel | None
    gloo: GlooDelegate
    order: CallOrder

    def end(self, *, orderly: bool) -> None:
        """Leave, when the others have all results too, or at once."""
        if self.lease is not None:
            self.lease.end(orderly=orderly)
        self.gloo.end(orderly=orderly)


class Routes:
    """The routes of one group; that of the script is made at once.

    Attributes:
        timeout: of collectives that have none of their own.

    Args:
        store: of torch, for this alone.
        rank: of this process in the group.
        size: of the group.
        global_ranks: of the group's ranks; empty where they are the same numbers.
        timeout: of making a route, and of collectives that have none of their own.
        check: waits a number of seconds for news of a lost rank, and raises its error.
        network: that the ranks have started; None: the environment names one.
        interface: this process's way to the switch; None: that of its global rank.
        gloo_beside: whether the inner groups are connected beside what the switch does. Only a
            call that needs one finds out if that failed.
        formed: the communicator of the script's route; None: one is made.

    Raises:
        DistNetworkError: ranks are missing, or no switch or controller answers; says which.
        DistBackendError: the controller refuses.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        global_ranks: Sequence[int],
        timeout: timedelta,
        check: Callable[[float], None],
        network: Started | None = None,
        interface: str | None = None,
        gloo_beside: bool = False,
        formed: Formed | None = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._global_ranks = global_ranks
        self.timeout = timeout
        self._check = check
        self._network = network
        self._interface = interface
        self._gloo_beside = gloo_beside
        self._lock = threading.Lock()
        self._ended = False
        self.first = self._open(0, formed)
        self._routes = [self.first]

    def here(self) -> Route:
        """Return the caller's route. All ranks call this the first time in a callback."""
        level = current_level()
        while level >= len(self._routes):
            made = self._open(len(self._routes))
            with self._lock:
                if not self._ended:
                    self._routes.append(made)
                    continue
            made.end(orderly=False)
            raise dist.DistBackendError("p4reduce: the group was destroyed meanwhile")
        return self._routes[level]

    def broken(self) -> RuntimeError | None:
        """Return the error after which a communicator can do nothing more; None: all work."""
        channels = [route.channel for route in self._routes]
        broken = (channel.broken() for channel in channels if channel is not None)
        return next((error for error in broken if error is not None), None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of collectives that have none of their own."""
        self.timeout = timeout
        for route in self._routes:
            if route.channel is not None:
                route.channel.timeout = timeout.total_seconds()
            route.gloo.set_timeout(timeout)

    def end(self, *, orderly: bool) -> None:
        """Leave. Idempotent."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            for route in reversed(self._routes):
                route.end(orderly=orderly)

    def _open(self, level: int, formed: Formed | None = None) -> Route:
        seconds = self.timeout.total_seconds()
        deadline = time.monotonic() + seconds
        store = dist.PrefixStore(f"route{level}/", self._store)
        if self._size == 1 and formed is None:
            return Route(None, None, self._connect(store, seconds), CallOrder())
        if formed is None:
            lease = self._lease(store, level)
        else:
            lease = Lease(formed.comm, formed.interface)
        channel = Channel(lease.comm, self._global_ranks, seconds)
        try:
            if self._gloo_beside:
                gloo = self._connect(store, min(seconds, CONNECT_TIMEOUT))
            else:
                gloo = self._connect_all(store, channel, deadline)
        except BaseException:
            lease.end(orderly=False)
            raise
        return Route(lease, channel, gloo, channel.order)

    def _lease(self, store: Any, level: int) -> Lease:
        """Join a job with the other ranks."""
        own = self._global_ranks[self._rank] if self._global_ranks else self._rank
        check = self._raise_if_broken if level else self._check
        network = self._network

        def check_all() -> None:
            check(0.0)
            if network is not None:
                network.network.check()

        label = label_of(self._global_ranks) + (", callbacks" if level else "")
        try:
            return open_communicator(
                store,
                label,
                rank=self._rank,
                size=self._size,
                global_rank=own,
                timeout=self.timeout.total_seconds(),
                check=check_all,
                network=None if network is None else network.variables,
                interface=self._interface,
            )
        except dist.DistNetworkError:
            check(LEASE)  # the store's host has gone, as it knew sooner that another rank is lost
            raise
        except P4ReduceError as error:
            raise as_torch_error(error) from error

    def _connect_all(self, store: Any, channel: Channel, deadline: float) -> GlooDelegate:
        """Connect the inner group. All ranks take the same attempts, and agree by the switch.

        Raises:
            DistNetworkError: it is not connected after the last attempt, or a rank is lost.
        """
        for attempt in range(CONNECT_ATTEMPTS):
            gloo, problem = None, None
            left = max(deadline - time.monotonic(), 1.0)
            try:
                gloo = self._connect(
                    dist.PrefixStore(f"attempt{attempt}/", store), min(left, CONNECT_TIMEOUT)
                )
            except dist.DistNetworkError as error:
                problem = error
            try:
                failures = channel.comm.allreduce(
                    np.array([problem is not None], np.int32),
                    name="ranks without the inner Gloo group",
                    timeout=left + LEASE,
                )
            except P4ReduceError as error:  # which says whom Gloo has waited for
                raise as_torch_error(error, self._global_ranks) from (problem or error)
            if gloo is not None and not failures[0]:
                return gloo
            if gloo is not None:
                gloo.end(orderly=False)
        raise problem or dist.DistNetworkError(
            f"p4reduce: {failures[0]} of {self._size} ranks did not reach the others by TCP, which "
            "the inner Gloo group needs; GLOO_SOCKET_IFNAME names a host's interface for it"
        )

    def _connect(self, store: Any, seconds: float) -> GlooDelegate:
        within = timedelta(seconds=seconds)
        address = "" if self._network is None else self._network.network.address
        gloo = GlooDelegate(
            dist.PrefixStore("gloo/", store),
            self._rank,
            self._size,
            within,
            address,
            beside=self._gloo_beside,
        )
        gloo.set_timeout(self.timeout)
        return gloo

    def _raise_if_broken(self, within: float) -> None:
        if self.first.channel is not None:
            self.first.channel.raise_if_broken(within)
