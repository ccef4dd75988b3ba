# SPDX-License-Identifier: Apache-2.0
"""A hook that does not wait for late ranks longer than until a deadline."""

from __future__ import annotations

from typing import Any

import torch

from p4reduce.handle import Handle
from p4reduce.torch.hooks.entry import hook
from p4reduce.torch.hooks.sending import send
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


@hook
def deadline_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of the ranks that are in time, as `Communicator.allreduce(deadline=)` does.

    `HookState.deadline` counts for each bucket. A late rank's gradient is added to its next one.
    All ranks get the same mean, so their weights stay equal. DDP itself waits for all ranks once,
    after the first step, and before each step if it broadcasts buffers.

    Raises:
        ValueError: `HookState` has no deadline, or the gradient is sparse.
    """
    tensor, name = bucket.buffer(), state.name(bucket)
    deadline, at_least = state.deadline, state.at_least
    if deadline is None:
        raise ValueError("deadline_hook needs HookState(deadline=…), in seconds")
    if tensor.layout != torch.strided:
        raise ValueError("deadline_hook: a gradient is sparse; sums with a deadline are dense")
    lent = array_of(tensor)

    def begin(timeout: float | None) -> Handle[Any]:
        whole = lent.array
        if (kept := state.kept.get(name)) is not None:
            whole = whole + kept
        total = state.channel.comm.allreduce(
            whole, Operation.MEAN, name, None, timeout, deadline=deadline, at_least=at_least
        )
        if total.included:
            state.kept.pop(name, None)
        else:
            state.kept[name] = whole.copy()
        lent.array[...] = total.result
        return Handle((), lambda: None)

    return send(
        state, "deadline_hook", tensor, lent.array.nbytes, begin, lent.put_back, agrees=True
    )
