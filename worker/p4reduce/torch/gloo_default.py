# SPDX-License-Identifier: Apache-2.0
"""A warning for a job that was started for the switch, and whose default group is Gloo's.

Frameworks choose the backend by themselves, and some choose Gloo for CPUs: training then works, and
nobody sees that the switch idles.
"""

from __future__ import annotations

import os
import warnings
from functools import wraps
from typing import Any

_STARTED_FOR = ("P4REDUCE_CONTROLLER", "P4REDUCE_INTERFACE", "P4REDUCE_SWITCHES")


def install() -> None:
    """Let `init_process_group` warn. Idempotent."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    original = c10d.init_process_group
    if getattr(original, "is_p4reduce", False):
        return

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        _warn()

    init_process_group.is_p4reduce = True  # type: ignore[attr-defined]
    c10d.init_process_group = dist.init_process_group = init_process_group


def _warn() -> None:
    import torch.distributed as dist

    started_for = next((name for name in _STARTED_FOR if os.environ.get(name)), "")
    on_cpus = dist.get_backend_config().split(",")
    if started_for and "cpu:gloo" in on_cpus and dist.get_rank() == 0:
        warnings.warn(
            f"{started_for} is set, and the default process group is Gloo's: its collectives do "
            'not use the switch. Call init_process_group("p4reduce"), before the framework does.',
            stacklevel=3,
        )
