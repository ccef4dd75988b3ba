# SPDX-License-Identifier: Apache-2.0
"""Hooks that send the sign of each number, and a common magnitude."""

# No `from __future__ import annotations`: see dense.py.

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from p4reduce.handle import Handle
from p4reduce.torch.dynamo import eagerly
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import TensorArray, array_of
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format

SHARED = Format.INT4.lanes
"""Numbers in a row whose signs are multiplied by one magnitude."""


@eagerly
def majority_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Give each number the sign that most ranks have: -1, 1, or 0 for a tie.

    That is signSGD with majority vote (Bernstein et al., ICML 2018), whose learning rate is the
    step of each parameter: about a hundredth of SGD's. NaN or infinity on any rank makes all of
    the bucket NaN on all ranks.
    """
    return _vote(state, bucket, "majority_hook", _Majority)


@eagerly
def onebit_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Take the mean of signs times a magnitude, and add the error to the next gradient.

    1-bit SGD (Seide et al., Interspeech 2014) with the magnitude of EF-signSGD (Karimireddy et al.,
    ICML 2019): of 2,048 numbers in a row the mean magnitude, averaged over the ranks.
    """
    return _vote(state, bucket, "onebit_hook", _OneBit)


class _Vote:
    """One bucket's signs, and a small all-reduce beside them.

    Attributes:
        whole: what this rank votes on, flat.
    """

    def __init__(self, state: HookState, name: str, lent: TensorArray) -> None:
        self._state, self._name, self._lent = state, name, lent
        self.whole: npt.NDArray[Any] = lent.array.reshape(-1)

    def beside(self) -> npt.NDArray[np.float32]:
        """Return what the ranks take the mean of besides."""
        raise NotImplementedError

    def result(self, votes: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> Any:
        """Return the gradient, from the sums of signs."""
        raise NotImplementedError

    def begin(self, timeout: float | None) -> Handle[Any]:
        comm = self._state.channel.comm
        # 0 and NaN vote for neither.
        votes = (self.whole > 0).astype(np.int8) - (self.whole < 0)
        if comm.size > Format.INT8.lane_maximum:
            votes = votes.astype(np.int16)
        narrow = comm.size <= Format.INT4.lane_maximum
        self._beside = comm.allreduce_async(
            self.beside(), Operation.MEAN, f"{self._name}/beside", timeout=timeout
        )
        self._votes = comm.allreduce_async(
            *(votes, Operation.SUM, self._name, votes, timeout),
            precision="int4" if narrow else None,
        )
        return Handle([self._beside, self._votes], lambda: None)

    def finish(self) -> None:
        result = self.result(self._votes.wait(), self._beside.wait())
        self._lent.array[...] = np.asarray(result).reshape(self._lent.array.shape)
        self._lent.put_back()


class _Majority(_Vote):
    def beside(self) -> npt.NDArray[np.float32]:
        # Zeros are not sent: the ranks meet in a frame without lanes.
        return np.full(1, 0 if np.isfinite(self.whole).all() else np.nan, np.float32)

    def result(self, votes: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> Any:
        return np.sign(votes) + beside[0]


class _OneBit(_Vote):
    def __init__(self, state: HookState, name: str, lent: TensorArray) -> None:
        super().__init__(state, name, lent)
        self._before = state.kept.get(name)
        if self._before is not None:
            self.whole = self.whole + self._before

    def beside(self) -> npt.NDArray[np.float32]:
        starts = np.arange(0, self.whole.size, SHARED)
        counts = np.diff(starts, append=self.whole.size)
        sums = np.add.reduceat(np.abs(self.whole), starts, dtype=np.float32)
        return (sums / counts).astype(np.float32)

    def result(self, votes: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> Any:
        each = np.repeat(beside, SHARED)[: votes.size]
        sent = np.sign(self.whole) * each
        kept = (self.whole - sent).astype(self.whole.dtype)
        # Where some rank's numbers are not finite, nothing was received. This rank keeps its own
        # for the next step, except numbers that are not finite: these would stay so for ever.
        lost = ~np.isfinite(kept)
        kept[lost] = self.whole[lost]
        if not np.isfinite(self.whole).all():
            own = ~np.isfinite(self.whole)
            kept[own] = 0 if self._before is None else self._before[own]
        self._state.kept[self._name] = kept
        return votes * (each / self._state.channel.size)


def _vote(
    state: HookState, bucket: Any, hook: str, kind: type[_Vote]
) -> torch.futures.Future[torch.Tensor]:
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook, tensor, name, None)
    lent = array_of(tensor)
    vote = kind(state, name, lent)
    return send(state, hook, tensor, lent.array.nbytes, vote.begin, vote.finish)
