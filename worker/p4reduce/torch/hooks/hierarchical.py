# SPDX-License-Identifier: Apache-2.0
"""A hook for trees of switches: each leaf sends the largest elements of its own sum."""

# No `from __future__ import annotations`: see dense.py.

from typing import Any

import torch
import torch.distributed as dist

from p4reduce.handle import Handle
from p4reduce.torch.dynamo import eagerly
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import TensorArray, array_of
from p4reduce.wire.calls import Operation


@eagerly
def hierarchical_hook(
    state: HookState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of what the leaves of a tree choose of their own sums (Shi et al., MLSys 2021).

    `HookState.density` is the share of the elements that cross the root for each leaf. On a single
    switch all ranks are one leaf. The first call splits the ranks; see
    `p4reduce.compression.HierarchicalTopK`.
    """
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, "hierarchical_hook", tensor, name, None)
    lent = array_of(tensor)
    started = _Started(state, name, lent)
    return send(
        *(state, "hierarchical_hook", tensor, lent.array.nbytes, started.begin, started.finish),
        agrees=True,
    )


class _Started:
    """One bucket's mean."""

    def __init__(self, state: HookState, name: str, lent: TensorArray) -> None:
        self._state = state
        self._name = name
        self._lent = lent
        self._handle: Handle[Any] | None = None

    def begin(self, timeout: float | None) -> Handle[Any]:
        reducer = self._state.hierarchy()
        self._handle = reducer.start(self._lent.array, self._name, Operation.MEAN, timeout)
        return self._handle

    def finish(self) -> None:
        assert self._handle is not None, "begin was called"
        self._lent.array[...] = self._handle.wait()
        self._lent.put_back()
