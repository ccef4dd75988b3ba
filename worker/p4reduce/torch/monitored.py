# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed.monitored_barrier` for groups of this backend.

torch's own asks for the backend "gloo" by its name before it calls the group's method, which a
group of this backend has as well.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from functools import wraps
from typing import Any


def install() -> None:
    """Replace `monitored_barrier` for groups of this backend. Idempotent."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    original = c10d.monitored_barrier
    if getattr(original, "is_p4reduce", False):
        return

    @wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        from p4reduce.torch.group import ours

        known = c10d._get_default_group() if group is None else group
        backend = ours(known)
        if backend is None:
            original(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, float):
            warnings.warn(f"timeout={timeout}: give a timedelta; seconds are taken", stacklevel=2)
            timeout = timedelta(seconds=timeout)
        backend.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.is_p4reduce = True  # type: ignore[attr-defined]
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
