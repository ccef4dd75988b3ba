# SPDX-License-Identifier: Apache-2.0
"""Runs a DDP hook once and again, for `bench.worker.costs`; needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from p4reduce.torch import hooks

_SIDE = 1024  # rows and columns of the parameters


class _Bucket:
    """What a hook asks of DDP's bucket."""

    def __init__(self, elements: int) -> None:
        self._tensor = torch.empty(elements)
        whole = elements - elements % _SIDE**2
        self._parts = [*self._tensor[:whole].view(-1, _SIDE, _SIDE), self._tensor[whole:]]

    def buffer(self) -> torch.Tensor:
        return self._tensor

    def parameters(self) -> list[torch.Tensor]:
        return self._parts

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def torch_gradients(elements: int) -> list[torch.Tensor]:
    """Three of a normal distribution."""
    random = np.random.default_rng(1)
    return [torch.from_numpy(random.standard_normal(elements).astype(np.float32)) for _ in range(3)]


def case(
    name: str, options: dict[str, Any], comm: Any, gradients: list[torch.Tensor]
) -> Callable[[], float]:
    """Return what runs a hook once, and returns its seconds of processor time."""
    state, bucket = hooks.HookState(comm, seed=1, **options), _Bucket(len(gradients[0]))
    hook: Any = getattr(hooks, name.partition(",")[0])
    turn = 0

    def once() -> float:
        nonlocal turn
        bucket.buffer().copy_(gradients[turn % len(gradients)])
        turn += 1
        begin = time.process_time()
        hook(state, bucket).wait()
        return time.process_time() - begin

    return once
