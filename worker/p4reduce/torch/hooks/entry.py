# SPDX-License-Identifier: Apache-2.0
"""How DDP calls a hook: with a bucket of the host's, or of an accelerator's.

A hook works on the host. A bucket of an accelerator is copied there and back beside the backward
pass, as a collective's tensors are (staging.py). For narrow lanes it is rounded before
(on_device.py).
"""

# No `from __future__ import annotations`: register_comm_hook looks at the annotations, and takes
# them as types only, not as strings. The second argument has to be called "bucket".

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from p4reduce.torch import accelerators
from p4reduce.torch.accelerators import Accelerator
from p4reduce.torch.dynamo import eagerly
from p4reduce.torch.hooks.on_device import DTYPES, start_on_device
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.staging import host_copies, start_staged
from p4reduce.torch.work import OutcomeWork

Start = Callable[[HookState, Any], OutcomeWork]
Hook = Callable[[HookState, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def hook(start: Start) -> Hook:
    """Make a hook of a function that starts the collective for a bucket of the host's."""
    return _made(start, None)


def hook_of_lanes(bits: int) -> Callable[[Start], Hook]:
    """As `hook`, for lanes of 16, 8 or 4 bits, to which an accelerator rounds its own buckets."""
    return lambda start: _made(start, bits)


def _made(start: Start, lane_bits: int | None) -> Hook:
    eagerly(start)

    def run(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer()
        accelerator = accelerators.accelerator_of(tensor)
        plain, bits = tensor.layout == torch.strided, lane_bits
        if bits and not (
            plain and tensor.dtype in DTYPES and state.all_on_device(bool(accelerator))
        ):
            bits = None
        if accelerator is None or not plain:
            work = start(state, bucket)
        elif bits:
            work = start_on_device(accelerator, state, bucket, start.__name__, bits)
        else:
            work = _staged(accelerator, start, state, bucket)
        future: torch.futures.Future[torch.Tensor] = work.get_future()
        return future

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(run, name, getattr(start, name))
    return eagerly(run)


def _staged(
    accelerator: Accelerator, start: Start, state: HookState, bucket: dist.GradBucket
) -> OutcomeWork:
    tensor = bucket.buffer()
    host = HostBucket(bucket, host_copies(accelerator, tensor))
    return start_staged(
        accelerator,
        state.channel.order.later,
        lambda handle: state.channel.waiter(handle, "hook"),
        start=lambda: start(state, host),
        down=[(host.buffer(), tensor)],
        up=[(host.buffer(), tensor)],
        result=tensor,
    )


class HostBucket:
    """A bucket with host memory in the place of its buffer.

    Args:
        bucket: of an accelerator's tensors.
        host: memory as long as its buffer.
    """

    def __init__(self, bucket: dist.GradBucket, host: torch.Tensor) -> None:
        # Asked for now: DDP's bucket ends with the call of the hook.
        self._host = host
        self._index: int = bucket.index()
        self._is_last: bool = bucket.is_last()
        self._parameters: list[torch.Tensor] = bucket.parameters()

    def buffer(self) -> torch.Tensor:
        """Return the host memory, which receives the result."""
        return self._host

    def index(self) -> int:
        """Return the bucket's number."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last bucket of a backward pass."""
        return self._is_last

    def parameters(self) -> list[torch.Tensor]:
        """Return the model's parameters whose gradients it has."""
        return self._parameters
