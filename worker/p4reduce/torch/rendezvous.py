# SPDX-License-Identifier: Apache-2.0
"""`init_process_group` under mpirun, srun and the like, with nothing set but the controller.

torch's own "env://" wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which only torchrun and
`p4reduce-lab exec` set. Where they are missing and another launcher says rank and world size, rank
0 opens torch's store on a free port and announces its address by the switch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

if TYPE_CHECKING:
    from p4reduce.communicator import Communicator

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOOPBACK = "127.0.0.1"


def install() -> None:
    """Replace "env://" where torch's own would fail. Idempotent."""
    # As a module: torch.distributed has a function of that name. The handlers are not public; where
    # they are no more, launchers that torch does not know need its variables, and all else works.
    module = import_module("torch.distributed.rendezvous")
    default_pg_timeout = import_module("torch.distributed.constants").default_pg_timeout
    handlers = getattr(module, "_rendezvous_handlers", {})
    original = handlers.get("env")
    if original is None or getattr(original, "is_p4reduce", False):
        return

    # As with torch's own, who calls it need not give a timeout: `torch.distributed.rpc` does not.
    def handler(
        url: str, timeout: timedelta = default_pg_timeout, **kwargs: Any
    ) -> Iterator[tuple[Any, int, int]]:
        if _is_for_torch(url) or not _is_placed():
            yield from original(url, timeout=timeout, **kwargs)
        else:
            yield _meet(timeout)
            raise RuntimeError("Unable to perform re-rendezvous using env:// method")

    handler.is_p4reduce = True  # type: ignore[attr-defined]
    handlers["env"] = handler


def _is_for_torch(url: str) -> bool:
    asked = parse_qs(urlparse(url).query)
    return bool(asked) or any(name in os.environ for name in _VARIABLES)


def _is_placed() -> bool:
    from p4reduce.environment import is_placed

    return is_placed()


def _meet(timeout: timedelta) -> tuple[Any, int, int]:
    from p4reduce.errors import P4ReduceError
    from p4reduce.initialize import init
    from p4reduce.torch.errors import as_torch_error

    try:
        with init(timeout=timeout.total_seconds()) as comm:
            return meet_over(comm, _own_address(), timeout)
    except P4ReduceError as error:
        raise as_torch_error(error) from error


def meet_over(comm: Communicator, address: str, timeout: timedelta) -> tuple[Any, int, int]:
    """Make torch's store in rank 0's process, and announce its address by the switch.

    Args:
        comm: of all ranks.
        address: where the others reach this host.
        timeout: of the store.

    Returns:
        The store, this process's rank and the number of ranks.

    Raises:
        P4ReduceError: of the communicator.
    """
    import torch.distributed as dist

    from p4reduce.torch.rank_zero import broadcast_text
    from p4reduce.torch.store import connected

    store, announced = None, ""
    if comm.rank == 0:
        store = dist.TCPStore(
            address,
            0,
            comm.size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
        announced = f"{address} {store.port}"
    announced = broadcast_text(comm, announced)
    if store is None:
        host, port = announced.split()
        store = connected(host, int(port), timeout.total_seconds(), world_size=comm.size)
    return store, comm.rank, comm.size


def _own_address() -> str:
    """Return where the others reach this host: by loopback if all are on it."""
    from p4reduce.launched import is_on_one_host

    return _LOOPBACK if is_on_one_host() else socket.gethostname()
