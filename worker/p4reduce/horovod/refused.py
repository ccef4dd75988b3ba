# SPDX-License-Identifier: Apache-2.0
"""Unsupported parts of Horovod's interface. Each error says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from p4reduce.horovod.errors import refused


def join(device: int = -1) -> NoReturn:
    """Raise NotImplementedError."""
    raise refused("join", "give all ranks as many batches, as DistributedSampler does")


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Raise NotImplementedError."""
    raise refused("start_timeline", "torch.profiler shows the calls as p4reduce::…")


def stop_timeline() -> NoReturn:
    """Raise NotImplementedError."""
    raise refused("stop_timeline", "torch.profiler shows the calls as p4reduce::…")


def run(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError."""
    raise refused("run", "start the script by p4reduce-lab exec -n 4 -- python …, or by torchrun")


class SyncBatchNorm:
    """Raises NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refused("SyncBatchNorm", "torch.nn.SyncBatchNorm is the same, and needs GPUs as well")
