# SPDX-License-Identifier: Apache-2.0
"""A network that rank 0's process starts and announces by torch's store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from p4reduce.hosts import this_host
from p4reduce.started_job import as_text, begin, from_text

_TIMEOUT = timedelta(seconds=120)


@contextmanager
def network_beside_ranks(engine: str, timeout: timedelta = _TIMEOUT) -> Iterator[None]:
    """Start switch and controller on rank 0's host; within, the environment names them.

    All ranks that torchrun started call it, before `init_process_group("p4reduce")`. Rank 0 ends
    the network when all have left, or at once if it fails.

    Args:
        engine: begins the job's name.
        timeout: to wait for the other ranks, at both ends.

    Raises:
        ConfigurationError: no address for the others to reach; on all ranks.
        LaunchError: the network does not start; on all ranks.
    """
    torchs, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore("p4reduce/network", torchs)
    store.set_timeout(timeout)
    store.set(f"host {rank}", this_host())
    if rank != 0:
        os.environ.update(from_text(store.get("told").decode()))
        yield
        store.set(f"done {rank}", "")
        return
    hosts = [store.get(f"host {one}").decode() for one in range(size)]
    try:
        variables, network = begin(size, hosts, engine)
    except BaseException as error:  # the others wait to be told
        store.set("told", as_text(error))
        raise
    try:
        os.environ.update(variables)
        store.set("told", as_text(variables))
        yield
        with suppress(dist.DistError):  # a rank that does not come has failed; torchrun says so
            store.wait([f"done {one}" for one in range(1, size)], timeout)
    finally:
        if network is not None:
            network.close()
