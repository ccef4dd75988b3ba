# SPDX-License-Identifier: Apache-2.0
"""A rank of `bench.pytorch.joining`, which imports nothing but torch: imports count."""

from __future__ import annotations

import time


def join(backend: str, begun: float) -> float:
    """Join, and return the seconds since `begun`, of the monotonic clock."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    dist.all_reduce(torch.ones(1000))
    took = time.monotonic() - begun
    dist.destroy_process_group()
    return took
