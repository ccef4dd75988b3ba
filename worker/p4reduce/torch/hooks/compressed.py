# SPDX-License-Identifier: Apache-2.0
"""Hooks that send a part of a gradient and keep the rest for the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from p4reduce.compression import Compressor, in_lanes, proposal_lanes
from p4reduce.handle import Handle
from p4reduce.torch.hooks.entry import hook, hook_on
from p4reduce.torch.hooks.on_device import start_blocks
from p4reduce.torch.hooks.sending import BucketMean, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import TensorArray, array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


@hook
def compressed_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of what a compressor chooses: `HookState.compressor`, a name or an object.

    For example:

        state = hooks.HookState(compressor="randomk:0.1/int16")
        model.register_comm_hook(state, hooks.compressed_hook)
    """
    return _mean(state, bucket, "compressed_hook", "")


@hook_on(start_blocks)
def topk_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of the blocks of most energy (Aji and Heafield, EMNLP 2017).

    Blocks that no rank chooses are not on the wire. `HookState.density` is the share of them.
    """
    return _mean(state, bucket, "topk_hook", f"topk:{state.density!r}")


@hook
def cat_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of as many blocks as earn their bits (arXiv 2003.06377; docs/compression.md).

    The ranks first agree on the blocks by a small all-reduce.
    """
    return _mean(state, bucket, "cat_hook", "cat")


def _mean(state: HookState, bucket: Any, hook_name: str, compressor: str) -> OutcomeWork:
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook_name, tensor, name, None)
    lent = array_of(tensor)
    chosen = state.compressor(compressor)
    chosen.describe(name, [tuple(one.shape) for one in bucket.parameters()])
    mean = _CompressedMean(state, chosen, name, lent)
    return mean.send(hook_name, tensor, agrees=mean.wanted is not None)


class _CompressedMean(BucketMean):
    """A mean of what a compressor makes of each rank's numbers.

    Attributes:
        wanted: what the ranks sum first, to agree; None: they need not.
    """

    def __init__(
        self, state: HookState, compressor: Compressor, name: str, lent: TensorArray
    ) -> None:
        super().__init__(state, name, lent)
        self._compressor = compressor
        self.wanted = compressor.propose(name, lent.array)

    def start(self, timeout: float | None) -> Handle[Any]:
        agreed, array, comm = None, self.array, self.state.channel.comm
        if self.wanted is not None:
            total = comm.allreduce_async(
                self.wanted,
                Operation.SUM,
                f"{self.name}/level",
                timeout=timeout,
                **proposal_lanes(self._compressor, self.state.rounding_seed(self._compressor)),
            ).wait()
            agreed = np.asarray(total)
            self.state.measure(self._compressor)
        sent = self._compressor.compress(self.name, array, agreed)
        return comm.allreduce_async(
            sent.values,
            Operation.MEAN,
            self.name,
            array if sent.values.shape == array.shape else None,
            timeout,
            **in_lanes(sent, self.state.rounding_seed(self._compressor)),
        )

    def put(self, total: Any) -> None:
        self.array[...] = self._compressor.decompress(self.name, np.asarray(total))
