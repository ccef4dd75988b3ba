# SPDX-License-Identifier: Apache-2.0
"""A network for this process: for notebooks, scripts and tests."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

import p4reduce
from p4reduce.environment import LAUNCHERS, OWN
from p4reduce.launch import Network, start
from p4reduce_common.threads import new_thread

_T = TypeVar("_T")
_P = ParamSpec("_P")
_JOB = "P4REDUCE_JOB"

# How this machine's workers work, whatever the network. Lanes: its switch was started with as many.
_KEPT = {
    "P4REDUCE_CACHE_DIR",
    "P4REDUCE_CFLAGS",
    "P4REDUCE_FAULTS",
    "P4REDUCE_LANES",
    "P4REDUCE_LINK",
}


class LocalNetwork:
    """A switch and its controller for this process, its threads and its children. See `local`.

    Attributes:
        network: what runs, with its process ids and its news.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    @property
    def ranks(self) -> int:
        """The largest number of ranks."""
        return self.network.ranks

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment by which `p4reduce.init` finds the network."""
        return self.network.variables

    def run(
        self,
        function: Callable[Concatenate[p4reduce.Communicator, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> list[_T]:
        """Call a function on each rank, and return the results in the ranks' order.

        Each rank is a thread of this process with a communicator of its own, which is closed
        afterwards. All calls of a run are one job.

        Args:
            function: called with the communicator, and then the other arguments.
            *args: for the function, the same on all ranks.
            **kwargs: for the function, the same on all ranks.

        Raises:
            LaunchError: the network has ended.
            Exception: what the function has raised first on any rank.
        """
        self.network.check()
        job = f"local-{secrets.token_hex(4)}"
        controller = self.variables["P4REDUCE_CONTROLLER"]
        interface = self.variables["P4REDUCE_INTERFACE"]
        results: dict[int, _T] = {}
        errors: list[BaseException] = []

        def rank_of(rank: int) -> None:
            try:
                with p4reduce.init(
                    rank, self.ranks, job=job, controller=controller, interface=interface
                ) as comm:
                    results[rank] = function(comm, *args, **kwargs)
            except BaseException as error:
                errors.append(error)

        threads = [
            new_thread(rank_of, f"rank-{rank}", args=(rank,), daemon=False)
            for rank in range(self.ranks)
        ]
        with environment(self.variables):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return [results[rank] for rank in range(self.ranks)]


@contextmanager
def local(
    ranks: int = 4,
    *,
    switches: int = 1,
    tree: str = "",
    captures: str | os.PathLike[str] = "",
) -> Iterator[LocalNetwork]:
    """Start a switch and its controller for this process, and end them with the block.

    Within the block the environment names the network. So `p4reduce.init(rank, world_size)` finds
    it in any thread of this process, and in each process that is started from it.

    Args:
        ranks: the largest number of ranks, 1 to 4,096.
        switches: how many switches side by side, 1 to 16.
        tree: "LxR": a root above L leaves of R ranks each, in place of switches side by side.
        captures: a directory for each port's frames, port1.pcap for rank 0 and so on. The files
            are complete after the block. "": none.

    Yields:
        The network. Its ports are Unix sockets, for processes of this user on this host.

    Raises:
        TypeError, ValueError: an argument is invalid; names it.
        ConfigurationError: the arguments contradict each other.
        LaunchError: it does not start; says why.

    Examples:
        >>> import numpy, p4reduce_lab
        >>> with p4reduce_lab.local(ranks=4) as network:
        ...     sums = network.run(lambda comm: comm.allreduce(numpy.ones(3, numpy.float32)))
        >>> sums[0].tolist()
        [4.0, 4.0, 4.0]
    """
    with (
        start(ranks, switches=switches, tree=tree, unix=True, captures=captures) as network,
        environment({**network.variables, _JOB: f"local-{secrets.token_hex(4)}"}),
    ):
        yield LocalNetwork(network)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables while the block runs, and hide all other P4REDUCE_ ones but `_KEPT`.

    A launcher's variables of this process's rank are hidden too: a rank of another job may be the
    one that starts a network. Afterwards all are as before.
    """
    of_rank = {
        name
        for one in (*LAUNCHERS, OWN)
        for name in (one.rank_name, one.world_size_name, one.local_rank_name)
    }
    before = {
        name: value
        for name, value in os.environ.items()
        if name in of_rank
        or name in variables
        or (name.startswith("P4REDUCE_") and name not in _KEPT)
    }
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
