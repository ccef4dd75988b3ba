# SPDX-License-Identifier: Apache-2.0
"""How hooks start an all-reduce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from p4reduce.handle import Handle
from p4reduce.torch.accelerators import Accelerator
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.sparse import SparseSum, sparse_reason
from p4reduce.torch.staging import StagedPart, StagedWork, start_staged
from p4reduce.torch.tensors import TensorArray
from p4reduce.torch.work import Later, OutcomeWork
from p4reduce.wire.calls import Operation


def send(
    state: HookState,
    hook: str,
    tensor: torch.Tensor,
    size: int,
    begin: Callable[[float | None], Handle[Any]],
    finish: Callable[[], None],
    *,
    agrees: bool = False,
) -> OutcomeWork:
    """Start an all-reduce whose result is the tensor.

    Args:
        state: of the hook.
        hook: its name, for the statistics.
        tensor: of the bucket; it receives the mean.
        size: bytes of this rank's input.
        begin: starts it, with a timeout in seconds.
        finish: called when it has succeeded.
        agrees: whether `begin` waits for the other ranks first.
    """
    return state.channel.start(
        hook, size, begin, options=None, result=tensor, finish=finish, agrees=agrees
    )


def start_beside(
    state: HookState,
    accelerator: Accelerator,
    *,
    part: StagedPart,
    result: torch.Tensor,
) -> StagedWork:
    """Start a bucket's collective beside the backward pass; arguments as for `start_staged`."""
    channel = state.channel
    return start_staged(
        accelerator,
        channel.order,
        lambda handle: channel.waiter(handle, "hook"),
        part=part,
        result=result,
    )


def send_sparse(
    state: HookState, hook: str, tensor: torch.Tensor, name: str, precision: str | None
) -> OutcomeWork:
    """Take the mean of a sparse bucket, uncoalesced as DDP has it, without making it dense."""
    if reason := sparse_reason(tensor):
        raise ValueError(
            f"{hook}: a gradient is {reason}; of sparse ones it sends rows of floats "
            "(sparse_dim 1), such as those of nn.Embedding(sparse=True)"
        )
    sparse = SparseSum(state.channel.comm, tensor, Operation.MEAN, name, precision, state.seed)
    return state.channel.start(
        f"{hook}, sparse",
        sparse.bytes,
        sparse.begin,
        options=None,
        result=Later(sparse.result),
        agrees=sparse.agrees,
    )


class BucketMean(ABC):
    """A bucket's mean, for hooks that work on it before and after the all-reduce.

    Attributes:
        state: the hook's.
        name: the bucket's.

    Args:
        lent: the bucket's numbers.
    """

    def __init__(self, state: HookState, name: str, lent: TensorArray) -> None:
        self.state = state
        self.name = name
        self._lent = lent
        self._handle: Handle[Any] | None = None

    @property
    def array(self) -> npt.NDArray[Any]:
        """The bucket's numbers, which become the mean."""
        return self._lent.array

    @abstractmethod
    def start(self, timeout: float | None) -> Handle[Any]:
        """Start the all-reduce of what is sent, with a timeout in seconds."""

    @abstractmethod
    def put(self, total: Any) -> None:
        """Store the result in `array`."""

    def send(self, hook: str, tensor: torch.Tensor, *, agrees: bool) -> OutcomeWork:
        """Start it, as the function `send` does."""
        return send(
            self.state, hook, tensor, self.array.nbytes, self._begin, self._finish, agrees=agrees
        )

    def _begin(self, timeout: float | None) -> Handle[Any]:
        self._handle = self.start(timeout)
        return self._handle

    def _finish(self) -> None:
        assert self._handle is not None, "it was begun"
        self.put(self._handle.wait())
        self._lent.put_back()
