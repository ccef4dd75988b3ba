# SPDX-License-Identifier: Apache-2.0
"""Hooks that send a part of a gradient and keep the rest for the next step."""

# No `from __future__ import annotations`: see dense.py.

import queue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from p4reduce.compression import Compressor
from p4reduce.handle import Handle
from p4reduce.torch.futures import promise
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.statistics import count_switch
from p4reduce.torch.tensors import Array, Lent, lend
from p4reduce.torch.threads import FutureThread
from p4reduce.torch.work import Outcome
from p4reduce.wire.calls import Operation


def topk_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of the blocks of most energy (Aji and Heafield, EMNLP 2017).

    Blocks that no rank chooses are not on the wire. `HookState.density` is the share of them.
    """
    return _mean(state, bucket, "topk_hook", f"topk:{state.density!r}")


def cat_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of as many blocks as earn their bits (arXiv 2003.06377; docs/experiments.md).

    The ranks agree on them first, which takes a small all-reduce before that of the blocks. Both
    are called by a thread of the hook's own, so the state's group should be one that nothing else
    uses during the backward pass: a communicator of `p4reduce.init`, or a `new_group()`.
    """
    return _mean(state, bucket, "cat_hook", "cat")


def _mean(
    state: HookState, bucket: Any, hook: str, compressor: str
) -> torch.futures.Future[torch.Tensor]:
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook, tensor, name, None)
    lent = lend(tensor)
    chosen = state.compressor(compressor)
    wanted = chosen.propose(name, lent.array)
    if wanted is not None:
        return _agreed(state, hook, tensor, lent, chosen, name, wanted)
    started = _Started(state, chosen, name, lent)
    return send(state, hook, tensor, lent.array.nbytes, started.begin, started.finish)


class _Started:
    """One bucket's compressed mean."""

    def __init__(self, state: HookState, compressor: Compressor, name: str, lent: Lent) -> None:
        self._state = state
        self._compressor = compressor
        self._name = name
        self._lent = lent

    def begin(self, timeout: float | None, agreed: Array | None = None) -> Handle[Any]:
        sent = self._compressor.compress(self._name, self._lent.array, agreed)
        narrow = sent.lane_bits < 32
        return self._state.channel.comm.allreduce_async(
            *(sent.values, Operation.MEAN, self._name, self._lent.array, timeout),
            precision=f"int{sent.lane_bits}" if narrow else None,
            seed=self._state.seed,
        )

    def finish(self) -> None:
        self._lent.array[...] = self._compressor.decompress(self._name, self._lent.array)
        self._lent.put_back()


_calls = FutureThread("p4reduce-hooks")


def _agreed(
    state: HookState,
    hook: str,
    tensor: torch.Tensor,
    lent: Lent,
    compressor: Compressor,
    name: str,
    wanted: Array,
) -> torch.futures.Future[torch.Tensor]:
    """Let the ranks agree first. All calls come from one thread: in the same order on all ranks."""
    started = _Started(state, compressor, name, lent)
    channel = state.channel
    outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()

    def call() -> None:
        try:
            agreed = np.asarray(channel.comm.allreduce(wanted, name=f"{name}/level"))
            handle = started.begin(None, agreed)
        except BaseException as error:
            outcomes.put(channel.translated(error))
        else:
            wait = channel.waiter(handle, hook)
            outcomes.put(Outcome(wait, started.finish, lambda: not handle.done()))

    def settle() -> torch.Tensor:
        outcome = outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        outcome.settle()
        return tensor

    count_switch(hook, lent.array.nbytes)
    _calls.submit(call)
    return promise(settle)
