# SPDX-License-Identifier: Apache-2.0
"""The backend for a torch that lets Python write one: `dist.BackendBase`.

There torch has a process group of its own, and calls the backend through C++. So torch itself takes
NCCL for CUDA tensors of "cpu:p4reduce,cuda:nccl", and TORCH_DISTRIBUTED_DEBUG=DETAIL its checks.
torch 2.14 has the class without that name, as `torch._C._distributed_c10d.Backend`. It is not taken
there: `is_completed` of a work that passes through C++ is never true, and `recv` from any rank
fails.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch.distributed as dist

from p4reduce.torch.futures import in_order
from p4reduce.torch.group import P4ReduceGroup, TorchCollectives
from p4reduce.torch.work import OutcomeWork


@functools.cache
def group_class() -> type[TorchCollectives]:
    """Return the class to use: a `dist.BackendBase` if torch has that, else a `ProcessGroup`."""
    base: Any = getattr(dist, "BackendBase", None)
    if base is None:
        return P4ReduceGroup
    _keep_futures()
    return type("P4ReduceBackend", (TorchCollectives, base), {"__doc__": "The backend p4reduce."})


_made = threading.local()


def _keep_futures() -> None:
    """Let callbacks of works that come through C++ run in order as well (futures.py).

    `Work.get_future` of such a work asks ours, but returns another object for the same future.
    A second call changes nothing.
    """
    original, own = dist.Work.get_future, OutcomeWork.get_future
    if getattr(original, "is_p4reduce", False):
        return

    def get_own(self: OutcomeWork) -> Any:
        _made.count = getattr(_made, "count", 0) + 1
        return own(self)

    def get_future(work: Any) -> Any:
        before = getattr(_made, "count", 0)
        future = original(work)
        return future if before == getattr(_made, "count", 0) else in_order(future)

    get_future.is_p4reduce = True  # type: ignore[attr-defined]
    OutcomeWork.get_future = get_own  # type: ignore[method-assign]
    dist.Work.get_future = get_future
