# SPDX-License-Identifier: Apache-2.0
"""Hooks that send all of a gradient, in lanes of 32, 16, 8 or 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from p4reduce.handle import Handle
from p4reduce.torch.hooks.entry import hook_of_lanes, hook_of_pieces
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


@hook_of_pieces
def allreduce_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of a bucket over all ranks, in lanes of 32 bits, in place.

    For example:

        model.register_comm_hook(hooks.HookState(), hooks.allreduce_hook)
    """
    return _mean(state, bucket, "allreduce_hook", None)


@hook_of_lanes(16)
def int16_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean in lanes of 16 bits: half the bytes, rounded at random, unbiased."""
    return _mean(state, bucket, "int16_hook", 16)


@hook_of_lanes(8)
def int8_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean in lanes of 8 bits: a quarter of the bytes, rounded at random, unbiased.

    For up to 63 ranks; the more there are, the fewer bits each has (docs/lanes.md).
    """
    return _mean(state, bucket, "int8_hook", 8)


@hook_of_lanes(4)
def int4_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean in lanes of 4 bits: an eighth of the bytes, rounded at random, unbiased.

    For up to 7 ranks. A rank has 2 * (7 // n) + 1 values, from 4 ranks on -1, 0 and 1 times the
    power of two above the block's largest number. Do not use error feedback then: the error is
    larger than the gradient, so what is kept grows (docs/lanes.md).
    """
    return _mean(state, bucket, "int4_hook", 4)


def _mean(state: HookState, bucket: Any, hook: str, lane_bits: int | None) -> OutcomeWork:
    tensor, name = bucket.buffer(), state.name(bucket)
    precision = None if lane_bits is None else f"int{lane_bits}"
    priority = state.priority(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook, tensor, name, precision)
    lent = array_of(tensor)
    array, residual = lent.array, None
    if lane_bits is not None and state.error_feedback:
        residual = state.kept.get(name)
        if residual is None:
            residual = state.kept[name] = np.zeros_like(array)

    def begin(timeout: float | None) -> Handle[Any]:
        return state.channel.comm.allreduce_async(
            array,
            Operation.MEAN,
            name,
            array,
            timeout,
            precision=precision,
            seed=state.seed,
            priority=priority,
            residual=residual,
        )

    return send(state, hook, tensor, array.nbytes, begin, lent.put_back)
