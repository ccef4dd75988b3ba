# SPDX-License-Identifier: Apache-2.0
"""`init`, ranks and sizes, and sets of ranks (Horovod's process sets)."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce_common.polling import holds_within

from p4reduce import variables
from p4reduce.environment import is_placed, placement
from p4reduce.errors import P4ReduceError
from p4reduce.horovod.errors import HorovodInternalError, internal, refused
from p4reduce.hosts import identity
from p4reduce.torch.delegate import LEASE, own_address
from p4reduce.torch.errors import as_torch_error
from p4reduce.torch.group import TorchCollectives, ours
from p4reduce.torch.names import NAME
from p4reduce.torch.registration import autoload
from p4reduce.torch.rendezvous import meet_over
from p4reduce.transport import port_name

_POLL = 0.02  # seconds
_TIMEOUT = timedelta(minutes=30)  # of torch's store, as torch has it


@dataclass(frozen=True)
class _HostPlace:
    """Where a rank is: `local` among those on its host, `cross` among their likes on all hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


class ProcessSet:
    """Some of the ranks, with collectives of their own.

    Args:
        ranks: numbers among all ranks.

    Attributes:
        process_set_id: 0 for all ranks; None before `init` or `add_process_set`.
        ranks: in ascending order.

    Raises:
        NotImplementedError: an MPI communicator is given in place of ranks.
        ValueError: they are no ranks, or one is repeated.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        if not hasattr(ranks, "__iter__"):
            raise refused(f"ProcessSet({ranks!r})", "give a list of ranks; there is no MPI here")
        listed = list(ranks)
        if any(not isinstance(rank, int) or rank < 0 for rank in listed):
            raise ValueError(f"ProcessSet({ranks!r}): ranks are numbers from 0 on")
        if len(set(listed)) != len(listed):
            raise ValueError(f"ProcessSet({ranks!r}): a rank occurs twice")
        self.process_set_id: int | None = None
        self.ranks = sorted(listed)
        self._group: Any = None

    def size(self) -> int | None:
        """Return the number of its ranks; None before it is initialised."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's number in the set; None before `init`, or if it is not in it."""
        if self.process_set_id is None or not self.included():
            return None
        return self.ranks.index(rank())

    def included(self) -> bool:
        """Return whether this process is in the set."""
        return rank() in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    @property
    def backend(self) -> TorchCollectives:
        """Return the backend of its collectives.

        Raises:
            ValueError: there is none, because `init` was not called or this rank is not in the set.
        """
        _world()
        if self.process_set_id is None:
            raise ValueError(f"{self}: give it to hvd.init or hvd.add_process_set first")
        if not self.included():
            raise ValueError(f"{self}: rank {rank()} is not one of it")
        backend = ours(self._group)
        assert backend is not None
        return backend


global_process_set = ProcessSet([])


@dataclass
class _HorovodState:
    place: _HostPlace | None = None
    owns_group: bool = False
    sets: dict[int, ProcessSet] = field(default_factory=dict)


_state = _HorovodState()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other ranks. A second call does nothing.

    Rank and world size come from the launcher: `p4reduce-lab exec`, torchrun, mpirun or srun. A
    process alone is rank 0 of 1. An existing default group of torch.distributed on this backend is
    used.

    Args:
        comm: None; MPI communicators and lists of ranks are refused.
        process_sets: the sets to initialise; "dynamic": none yet. `add_process_set` may be called
            at any time.

    Raises:
        NotImplementedError: `comm` is given.
        ValueError: torch.distributed runs on another backend; a set cannot be initialised, and
            `init` has undone what it did.
        HorovodInternalError, RuntimeError: as for `torch.distributed.init_process_group`.
    """
    if comm is not None and comm != []:
        raise refused(f"init(comm={comm!r})", "all ranks that the launcher started take part")
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets={process_sets!r}: a list of ProcessSet, or 'dynamic'")
    if is_initialized():
        return
    autoload()
    owns = not dist.is_initialized()
    if owns and _is_launched():
        dist.init_process_group(NAME)
    elif owns:
        dist.init_process_group(NAME, store=dist.HashStore(), rank=0, world_size=1)
    if ours(dist.group.WORLD) is None:
        raise ValueError(
            f"torch.distributed runs on {dist.get_backend()!r}: p4reduce.horovod needs "
            f"init_process_group({NAME!r}), or none before hvd.init()"
        )
    _enter(owns)
    if process_sets is not None and not isinstance(process_sets, str):
        try:
            for one in process_sets:
                add_process_set(one)
        except BaseException:
            shutdown()
            raise


def shutdown() -> None:
    """Leave the job. A group that existed before `init` stays."""
    if not is_initialized():
        return
    if not _state.owns_group:
        for one in list(_state.sets.values()):
            remove_process_set(one)
    for one in [*_state.sets.values(), global_process_set]:
        one.process_set_id, one._group = None, None
    _state.place = None
    _state.sets.clear()
    if _state.owns_group and dist.is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` was not called since."""
    return _state.place is not None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Initialise a set of ranks. All ranks call this, even those outside of the set.

    Raises:
        ValueError: a set of these ranks exists, or a rank does not exist.
    """
    _world()
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    known = [global_process_set, *_state.sets.values()]
    if any(one.ranks == other.ranks for other in known):
        raise ValueError(f"there is a process set of the ranks {one.ranks} already")
    if not one.ranks or one.ranks[-1] >= size():
        raise ValueError(f"{one}: of {size()} ranks the last one is {size() - 1}")
    one._group = dist.new_group(one.ranks, backend=NAME)
    one.process_set_id = max(_state.sets, default=0) + 1
    _state.sets[one.process_set_id] = one
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set of ranks. All ranks call this. Return whether it existed."""
    _world()
    if process_set.process_set_id not in _state.sets:
        return False
    del _state.sets[process_set.process_set_id]
    if process_set.included():
        dist.destroy_process_group(process_set._group)
    process_set.process_set_id, process_set._group = None, None
    return True


def rank() -> int:
    """Return this process's number among all."""
    _world()
    return int(dist.get_rank())


def size() -> int:
    """Return the number of all ranks."""
    _world()
    return int(dist.get_world_size())


def local_rank() -> int:
    """Return this process's number among the ranks on its host, in the order of their ranks."""
    return _world().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _world().local_size


def cross_rank() -> int:
    """Return this host's number among the hosts with a rank of this local rank."""
    return _world().cross_rank


def cross_size() -> int:
    """Return how many hosts have a rank with this local rank."""
    return _world().cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many ranks."""
    return _world().homogeneous


def reform(error: HorovodInternalError) -> None:
    """Continue with the remaining ranks, renumbered. All of them call this.

    Args:
        error: that the failed collective raised.

    Raises:
        HorovodInternalError: no rank is lost, so it is `error` again; or not all remaining ranks
            came.
    """
    backend = ours(dist.group.WORLD)
    channel = None if backend is None else backend.channel
    if channel is None:
        raise error
    # An error of Gloo's comes before the lost rank's lease is over.
    holds_within(LEASE, lambda: channel.comm.broken is not None, _POLL)
    if not channel.lost:
        raise error
    try:
        comm = channel.comm.reform()
        address = own_address() or socket.gethostname()
        owns = _state.owns_group
        _state.owns_group = True  # the old group cannot be of use to anybody
        shutdown()
        with comm, internal():
            store, number, total = meet_over(comm, address, _TIMEOUT)
            dist.init_process_group(NAME, store=store, rank=number, world_size=total)
    except P4ReduceError as problem:
        raise HorovodInternalError(str(as_torch_error(problem))) from problem
    _enter(owns)


def _enter(owns_group: bool) -> None:
    """Fill in what is known once the default group is there."""
    global_process_set.ranks = list(range(dist.get_world_size()))
    global_process_set.process_set_id, global_process_set._group = 0, dist.group.WORLD
    _state.owns_group = owns_group
    _state.place = _found_place(dist.get_rank(), dist.get_world_size())
    _keep_port()


def _keep_port() -> None:
    """Stay at this port of the switch, also where `reform` gives this process another rank."""
    if os.environ.get(variables.INTERFACE):
        number, total = dist.get_rank(), dist.get_world_size()
        local = placement(number, total).local_rank
        os.environ[variables.INTERFACE] = port_name(None, number, local)


def _found_place(number: int, total: int) -> _HostPlace:
    """Find the ranks of each host; all ranks call this."""
    hosts: list[Any] = [identity()]
    if total > 1:
        hosts = [None] * total
        dist.all_gather_object(hosts, identity())
    local = [hosts[:other].count(hosts[other]) for other in range(total)]
    alike = [other for other in range(total) if local[other] == local[number]]
    sizes = {hosts.count(host) for host in hosts}
    return _HostPlace(
        local_rank=local[number],
        local_size=hosts.count(hosts[number]),
        cross_rank=alike.index(number),
        cross_size=len(alike),
        homogeneous=len(sizes) == 1,
    )


def _is_launched() -> bool:
    return "RANK" in os.environ or is_placed()


def _world() -> _HostPlace:
    if _state.place is None:
        raise ValueError("p4reduce.horovod is not initialised: call hvd.init() first")
    return _state.place


def integers(numbers: Sequence[int]) -> torch.Tensor:
    """Return numbers as a tensor of int64."""
    return torch.tensor(list(numbers), dtype=torch.int64)
