# SPDX-License-Identifier: Apache-2.0
"""torchft's process group on the switch: replicas come and go between two steps.

torchft's Manager learns from its lighthouse which replicas take part in a step. If they are others
than before, it gives the process group a new store, rank and world size. The replicas then form a
new job on the switch. This process keeps its port there.

The network outlives each replica, so the environment names it (docs/ft.md).
"""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from p4reduce_common.threads import new_thread

from p4reduce.torch.backend import make_group
from p4reduce.torch.errors import torch_errors
from p4reduce.torch.group import TorchCollectives
from p4reduce.torch.held_port import HeldPort
from p4reduce.torch.names import NAME

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(
        f"p4reduce.torch.ft needs torchft, which is not installed ({error}): "
        "pip install 'p4reduce[torchft]'",
        name=error.name,
    ) from error

if not hasattr(ProcessGroupWrapper, "reconfigure"):
    # Its Manager takes the wrong callback where a future ends in another thread, in each step.
    raise ImportError(
        "p4reduce.torch.ft needs a newer torchft than 0.2: pip uninstall torchft, then "
        "pip install 'p4reduce[torchft]'"
    )

_TIMEOUT = timedelta(seconds=60)


class ProcessGroupP4Reduce(ProcessGroupWrapper):
    """A process group for `torchft.Manager(pg=)`, whose collectives the switch computes.

    All that init_process_group("p4reduce") does by the switch goes by the switch here, and the
    rest by Gloo. It is for host memory and accelerators alike. After a lost replica its works raise
    DistBackendError, as fast on all survivors, and `errored` returns it until the next
    reconfiguration.

    Args:
        timeout: of a reconfiguration, and of collectives that have none of their own.

    Example:
        >>> from torchft import Manager
        >>> from p4reduce.torch.ft import ProcessGroupP4Reduce
        >>> manager = Manager(pg=ProcessGroupP4Reduce(), min_replica_size=2, …)
    """

    _pg: TorchCollectives | None  # torchft's name for the present group

    def __init__(self, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__(timeout)
        self._port = HeldPort()
        weakref.finalize(self, self._port.release)
        self._cancelled = threading.Event()
        self._aborted: Exception | None = None
        self._leaving: threading.Thread | None = None

    def getBackendName(self) -> str:  # noqa: N802  # torch's name for it
        """Return "torchft-p4reduce"."""
        return f"torchft-{NAME}"

    @property
    def parent(self) -> Any:
        """The group of the last reconfiguration. Raises DistBackendError if there is none."""
        if self._pg is None:
            raise self._aborted or dist.DistBackendError(
                "p4reduce: the process group is not configured: torchft's Manager does it in the "
                "first step"
            )
        return self._pg

    def _create_pg(self, store: Any, rank: int, world_size: int) -> TorchCollectives:
        """Form a group with the other replicas. torchft has aborted the one of before."""
        cancelled = self._cancelled = threading.Event()

        def check(within: float) -> None:
            if cancelled.is_set():
                raise dist.DistBackendError("p4reduce: aborted while the replicas formed a group")

        with torch_errors():
            interface = self._port.take(self._first_port(rank)) if world_size > 1 else None
            made = make_group(
                store,
                rank,
                world_size,
                (),
                self._timeout,
                check=check,
                interface=interface,
                replicas=True,
            )
        self._aborted = None
        return made

    def _first_port(self, rank: int) -> int:
        """Return the port to try first: another one for each process of all replicas."""
        return rank * (self._group_world_size or 1) + (self._group_rank or 0)

    def abort(self, errored: bool = True) -> None:
        """End the group at once. Collectives in flight end with an error.

        Args:
            errored: whether `errored` returns an error from now on.
        """
        self._cancelled.set()
        if errored:
            self._aborted = dist.DistBackendError("p4reduce: the process group was aborted")
        group, self._pg = self._pg, None
        if group is not None:
            # The next one need not wait until this one has left its job.
            self._leaving = new_thread(group.abort, "p4reduce-abort", daemon=False)
            self._leaving.start()
        super().abort(errored)

    def errored(self) -> Exception | None:
        """Return why the group needs a reconfiguration; None: it does not."""
        return self._aborted or (None if self._pg is None else self._pg.broken())

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of reconfigurations, and of collectives that have none."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave when the others have all results, and give the port back."""
        self._cancelled.set()
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()
        if self._leaving is not None:
            self._leaving.join()
        self._port.release()
