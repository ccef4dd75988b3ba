# SPDX-License-Identifier: Apache-2.0
"""How DDP calls a hook: with a bucket of the host's, or of an accelerator's.

A hook works on the host. A bucket of an accelerator is copied there and back beside the backward
pass, as a collective's tensors are (staging.py). For narrow lanes it is rounded before
(on_device.py).
"""

# No `from __future__ import annotations`: register_comm_hook looks at the annotations, and takes
# them as types only, not as strings. The second argument has to be called "bucket".

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from p4reduce.torch import accelerators
from p4reduce.torch.accelerators import Accelerator, copies_down, copies_up
from p4reduce.torch.calls import PART
from p4reduce.torch.dynamo import eagerly
from p4reduce.torch.hooks.on_device import DTYPES, start_lanes
from p4reduce.torch.hooks.sending import start_beside
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.staging import StagedPart, StagedWork, host_copies
from p4reduce.torch.work import OutcomeWork

Start = Callable[[HookState, Any], OutcomeWork]
StartOnDevice = Callable[[Accelerator, HookState, Any, str], OutcomeWork | None]
Hook = Callable[[HookState, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def hook(start: Start) -> Hook:
    """Make a hook of a function that starts the collective for a bucket of the host's."""
    return _made(start, None)


def hook_of_pieces(start: Start) -> Hook:
    """As `hook`, for a function that may be called for pieces of a bucket, which keeps no state.

    Where torch has an accelerator on some rank, one piece is on the wire while another is copied.
    """
    return _made(start, None, in_pieces=True)


def hook_on(on_device: StartOnDevice) -> Callable[[Start], Hook]:
    """As `hook`, with a function for buckets that an accelerator makes smaller by itself.

    Args:
        on_device: starts the collective, if all ranks' buckets are an accelerator's. Returns None
            if that is to be done on the host after all, on all ranks alike.
    """
    return lambda start: _made(start, on_device)


def hook_of_lanes(bits: int) -> Callable[[Start], Hook]:
    """As `hook`, for lanes of 16, 8 or 4 bits, to which an accelerator rounds its own buckets."""
    return hook_on(partial(start_lanes, lane_bits=bits))


def _made(start: Start, on_device: StartOnDevice | None, *, in_pieces: bool = False) -> Hook:
    eagerly(start)

    def run(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor, work = bucket.buffer(), None
        accelerator = accelerators.accelerator_of(tensor)
        plain = tensor.layout == torch.strided
        if on_device is not None and plain and tensor.dtype in DTYPES:
            # All ranks ask, and so do those whose buckets are the host's.
            everywhere = state.all_on_device(accelerator is not None)
            if everywhere and accelerator is not None:
                work = on_device(accelerator, state, bucket, start.__name__)
        in_parts = in_pieces and plain and state.channel.accelerated
        if work is None and in_parts and tensor.numel() > PART:
            pieces = [BucketWith(bucket, piece) for piece in tensor.split(PART)]
            works = [_started(accelerator, start, state, piece) for piece in pieces]
            work = StagedWork.of_several(works, tensor)
        elif work is None:
            work = _started(accelerator if plain else None, start, state, bucket)
        future: torch.futures.Future[torch.Tensor] = work.get_future()
        return future

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(run, name, getattr(start, name))
    return eagerly(run)


def _started(
    accelerator: Accelerator | None, start: Start, state: HookState, bucket: Any
) -> OutcomeWork:
    if accelerator is None:
        return start(state, bucket)
    tensor = bucket.buffer()
    host = BucketWith(bucket, host_copies(accelerator, tensor))
    pairs = [(host.buffer(), tensor)]
    part = StagedPart(lambda: start(state, host), copies_down(pairs), copies_up(pairs))
    return start_beside(state, accelerator, part=part, result=tensor)


class BucketWith:
    """A bucket with another tensor in the place of its buffer.

    Args:
        bucket: of DDP.
        buffer: a piece of its buffer, or host memory for that.
    """

    def __init__(self, bucket: Any, buffer: torch.Tensor) -> None:
        # Asked for now: DDP's bucket ends with the call of the hook.
        self._buffer = buffer
        self._index: int = bucket.index()
        self._is_last: bool = bucket.is_last()
        self._parameters: list[torch.Tensor] = bucket.parameters()

    def buffer(self) -> torch.Tensor:
        """Return the tensor that receives the result."""
        return self._buffer

    def index(self) -> int:
        """Return the bucket's number."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last bucket of a backward pass."""
        return self._is_last

    def parameters(self) -> list[torch.Tensor]:
        """Return the model's parameters whose gradients it has."""
        return self._parameters
