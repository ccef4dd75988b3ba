# SPDX-License-Identifier: Apache-2.0
"""Hooks that send a part of a gradient and keep the rest for the next step."""

# No `from __future__ import annotations`: see dense.py.

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from p4reduce.compression import Compressor, in_lanes, proposal_lanes
from p4reduce.handle import Handle
from p4reduce.torch.dynamo import eagerly
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import TensorArray, array_of
from p4reduce.wire.calls import Operation


@eagerly
def compressed_hook(
    state: HookState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of what `HookState.compressor` chooses: any that has a name.

    Example::

        state = hooks.HookState(compressor="randomk:0.1/int16")
        model.register_comm_hook(state, hooks.compressed_hook)
    """
    return _mean(state, bucket, "compressed_hook", "")


@eagerly
def topk_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of the blocks of most energy (Aji and Heafield, EMNLP 2017).

    Blocks that no rank chooses are not on the wire. `HookState.density` is the share of them.
    """
    return _mean(state, bucket, "topk_hook", f"topk:{state.density!r}")


@eagerly
def cat_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of as many blocks as earn their bits (arXiv 2003.06377; docs/compression.md).

    The ranks first agree on the blocks by a small all-reduce.
    """
    return _mean(state, bucket, "cat_hook", "cat")


def _mean(
    state: HookState, bucket: Any, hook: str, compressor: str
) -> torch.futures.Future[torch.Tensor]:
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook, tensor, name, None)
    lent = array_of(tensor)
    chosen = state.compressor(compressor)
    chosen.describe(name, [tuple(one.shape) for one in bucket.parameters()])
    started = _Started(state, chosen, name, lent)
    return send(
        *(state, hook, tensor, lent.array.nbytes, started.begin, started.finish),
        agrees=started.wanted is not None,
    )


class _Started:
    """One bucket's compressed mean.

    Attributes:
        wanted: what the ranks sum first, to agree; None: they need not.
    """

    def __init__(
        self, state: HookState, compressor: Compressor, name: str, lent: TensorArray
    ) -> None:
        self._state = state
        self._compressor = compressor
        self._name = name
        self._lent = lent
        self._handle: Handle[Any] | None = None
        self.wanted = compressor.propose(name, lent.array)

    def begin(self, timeout: float | None) -> Handle[Any]:
        agreed = None
        if self.wanted is not None:
            comm, name = self._state.channel.comm, f"{self._name}/level"
            seed = self._state.rounding_seed(self._compressor)
            total = comm.allreduce_async(
                *(self.wanted, Operation.SUM, name),
                timeout=timeout,
                **proposal_lanes(self._compressor, seed),
            ).wait()
            agreed = np.asarray(total)
            self._state.measure(self._compressor)
        sent = self._compressor.compress(self._name, self._lent.array, agreed)
        array = self._lent.array
        self._handle = self._state.channel.comm.allreduce_async(
            *(sent.values, Operation.MEAN, self._name),
            *(array if sent.values.shape == array.shape else None, timeout),
            **in_lanes(sent, self._state.rounding_seed(self._compressor)),
        )
        return self._handle

    def finish(self) -> None:
        assert self._handle is not None, "begin was called"
        total = np.asarray(self._handle.wait())
        self._lent.array[...] = self._compressor.decompress(self._name, total)
        self._lent.put_back()
