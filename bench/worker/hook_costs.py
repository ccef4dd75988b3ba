# SPDX-License-Identifier: Apache-2.0
"""Processor time per number of each DDP hook: all threads of a rank, with its all-reduces.

OMP_NUM_THREADS=1 p4reduce-lab exec -n 1 -- python -m bench.worker.hook_costs [--elements 4194304]

The job has one rank, so nothing waits for other ranks. Medians of interleaved runs, after two that
fill residuals. `allreduce_hook` is what float32 costs without a hook.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import p4reduce
import torch
from p4reduce.torch import hooks

from bench.worker.costs import nanoseconds, read_options

_HOOKS: dict[str, dict[str, Any]] = {
    "allreduce_hook": {},
    "int16_hook": {},
    "int8_hook": {},
    "int8_hook, feedback": {"error_feedback": True},
    "int4_hook": {},
    "topk_hook": {},
    "elements_hook": {},
    "hierarchical_hook": {},
    "majority_hook": {},
    "onebit_hook": {},
    "cat_hook": {},
    "compressed_hook, powersgd:4/int8": {"compressor": "powersgd:4/int8"},
    "deadline_hook": {"deadline": 60.0},
}
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


def main() -> None:
    given = read_options(__doc__)
    random = np.random.default_rng(1)
    gradients = [
        torch.from_numpy(random.standard_normal(given.elements).astype(np.float32))
        for _ in range(3)
    ]
    with p4reduce.init(timeout=120.0) as comm:
        cases = {name: case(name, some, comm, gradients) for name, some in _HOOKS.items()}
        found = nanoseconds(cases, given)
    print("| hook | ns per number |\n| --- | --- |")
    for name, each in found.items():
        print(f"| `{name}` | {each:.1f} |")


if __name__ == "__main__":
    main()
