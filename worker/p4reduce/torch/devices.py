# SPDX-License-Identifier: Apache-2.0
"""Other devices' backends: in "cpu:p4reduce,cuda:nccl" CUDA tensors go to NCCL.

torch makes no further backend if one of them is a process group in Python. So the group looks up
its other backends, and makes one when the first tensor of its device comes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from p4reduce.torch.names import NAME


class OtherDevices:
    """The backends of a group's other devices.

    Args:
        store: of torch, for this alone.
        rank: of this process in the group.
        size: of the group.
        timeout: of their collectives.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._store = store
        self._place = rank, size
        self._timeout = timeout
        self._made: dict[str, Any] = {}

    def backend(self, group: Any, device: str) -> Any:
        """Return a device's backend; None: this one, which copies to and from the host.

        Args:
            group: as torch knows it.
            device: "cuda".
        """
        if device not in self._made:
            configured = c10d._world.pg_backend_config.get(group, "")
            backends = dict(pair.split(":", 1) for pair in configured.split(",") if ":" in pair)
            self._made[device] = self._make(device, backends.get(device, NAME))
        return self._made[device]

    def _make(self, device: str, name: str) -> Any:
        store = dist.PrefixStore(f"{device}/", self._store)
        rank, size = self._place
        if name == NAME:
            return None
        if name == "gloo":
            return dist.ProcessGroupGloo(store, rank, size, timeout=self._timeout)
        if name == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, rank, size, options)
        plugin = dist.Backend._plugins.get(name.upper())
        if plugin is None or plugin.extended_api:
            raise RuntimeError(
                f"p4reduce: cannot have {device}:{name} beside it; nccl and gloo can"
            )
        return plugin.creator_fn(store, rank, size, self._timeout)
