# SPDX-License-Identifier: Apache-2.0
"""A hook that sends the largest elements of a gradient and keeps the rest for the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from p4reduce.compression import kernels
from p4reduce.handle import Handle
from p4reduce.tensors.sparse import SparseElements
from p4reduce.torch.hooks.entry import hook
from p4reduce.torch.hooks.sending import BucketMean, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


@hook
def elements_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of the largest elements by magnitude (Renggli et al., SC 2019).

    Each rank chooses its own, `HookState.density` of a bucket, and all get the mean over the
    union. The ranks agree on it first. A gradient that is not finite is an error on all ranks.
    """
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, "elements_hook", tensor, name, None)
    state.sent_of(tensor.numel())  # raises here, not in a thread
    return _ElementsMean(state, name, array_of(tensor)).send("elements_hook", tensor, agrees=True)


class _ElementsMean(BucketMean):
    """The mean of the elements that any rank has chosen."""

    def start(self, timeout: float | None) -> Handle[SparseElements]:
        state, array = self.state, self.array.reshape(-1)
        kept = state.kept.get(self.name)
        whole = kernels.lend(state.spare, array.size, array.dtype)
        if kept is None:
            whole[:] = array
        else:
            np.add(array, kept, out=whole)
        places = kernels.largest(whole, state.sent_of(whole.size))
        sent = SparseElements(places, whole[places], whole.size)
        handle = state.channel.comm.allreduce_sparse_async(
            sent, Operation.MEAN, name=self.name, timeout=timeout, seed=state.seed
        )
        whole[places] = 0
        state.kept[self.name] = whole
        return handle

    def put(self, total: SparseElements) -> None:
        array = self.array.reshape(-1)
        array[:] = 0
        array[total.indices] = total.values
