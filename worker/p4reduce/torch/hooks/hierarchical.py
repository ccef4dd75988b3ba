# SPDX-License-Identifier: Apache-2.0
"""A hook for trees of switches: each leaf sends the largest elements of its own sum."""

from __future__ import annotations

from typing import Any

import torch

from p4reduce.handle import Handle
from p4reduce.torch.hooks.entry import hook
from p4reduce.torch.hooks.sending import BucketMean, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


@hook
def hierarchical_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of what the leaves of a tree choose of their own sums (Shi et al., MLSys 2021).

    `HookState.density` is the share of the elements that cross the root for each leaf. On a single
    switch all ranks are one leaf. The first call splits the ranks; see
    `p4reduce.compression.HierarchicalTopK`.
    """
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, "hierarchical_hook", tensor, name, None)
    mean = _LeavesMean(state, name, array_of(tensor))
    return mean.send("hierarchical_hook", tensor, agrees=True)


class _LeavesMean(BucketMean):
    """The mean of what the leaves have chosen."""

    def start(self, timeout: float | None) -> Handle[Any]:
        return self.state.hierarchy().start(self.array, self.name, Operation.MEAN, timeout)

    def put(self, total: Any) -> None:
        self.array[...] = total
