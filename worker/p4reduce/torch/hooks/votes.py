# SPDX-License-Identifier: Apache-2.0
"""Hooks that send the sign of each number, and a common magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p4reduce.compression import kernels
from p4reduce.handle import Handle
from p4reduce.torch.hooks.entry import hook
from p4reduce.torch.hooks.sending import send, send_sparse
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.tensors import TensorArray, array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format

SHARED = Format.INT4.lanes
"""Numbers in a row whose signs are multiplied by one magnitude."""


@hook
def majority_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Give each number the sign that most ranks have: -1, 1, or 0 for a tie.

    That is signSGD with majority vote (Bernstein et al., ICML 2018), whose learning rate is the
    step of each parameter: about a hundredth of SGD's. NaN or infinity on any rank makes all of
    the bucket NaN on all ranks.
    """
    return _vote(state, bucket, "majority_hook", _Majority)


@hook
def onebit_hook(state: HookState, bucket: Any) -> OutcomeWork:
    """Take the mean of signs times a magnitude, and add the error to the next gradient.

    1-bit SGD (Seide et al., Interspeech 2014) with the magnitude of EF-signSGD (Karimireddy et al.,
    ICML 2019): of 2,048 numbers in a row the mean magnitude, averaged over the ranks.
    """
    return _vote(state, bucket, "onebit_hook", _OneBit)


class _Vote:
    """One bucket's signs, and a small all-reduce beside them."""

    def __init__(self, state: HookState, name: str, lent: TensorArray) -> None:
        self.state, self.name, self._lent = state, name, lent
        self.array: npt.NDArray[Any] = lent.array.reshape(-1)

    def cast(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
        """Return this rank's signs, and what the ranks take the mean of besides."""
        raise NotImplementedError

    def put(self, tallies: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> None:
        """Store the gradient, from the sums of signs."""
        raise NotImplementedError

    def begin(self, timeout: float | None) -> Handle[Any]:
        comm = self.state.channel.comm
        votes, beside = self.cast()
        tallies = votes
        if comm.size > Format.INT8.lane_maximum:
            tallies = votes.astype(np.int16)
        narrow = comm.size <= Format.INT4.lane_maximum
        self._beside = comm.allreduce_async(
            beside, Operation.MEAN, f"{self.name}/beside", timeout=timeout
        )
        self._tallies = comm.allreduce_async(
            tallies,
            Operation.SUM,
            self.name,
            tallies,
            timeout,
            precision="int4" if narrow else None,
        )
        return Handle([self._beside, self._tallies], lambda: None)

    def finish(self) -> None:
        self.put(self._tallies.wait(), self._beside.wait())
        self._lent.put_back()


class _Majority(_Vote):
    def cast(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
        finite, votes = kernels.votes(self.array, shared=SHARED)
        # Zeros are not sent: the ranks meet in a frame without lanes.
        return votes, np.full(1, 0 if finite else np.nan, np.float32)

    def put(self, tallies: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> None:
        kernels.majority(tallies, float(beside[0]), self.array)


class _OneBit(_Vote):
    def cast(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
        array, before = self.array, self.state.kept.get(self.name)
        self._before, self._whole = before, array
        if before is not None:
            self._whole = kernels.lend(self.state.spare, array.size, array.dtype)
        means = np.empty(-(-array.size // SHARED), np.float32)
        _, votes = kernels.votes(
            array,
            before,
            shared=SHARED,
            wanted=None if before is None else self._whole,
            means=means,
        )
        return votes, means

    def put(self, tallies: npt.NDArray[Any], beside: npt.NDArray[np.float32]) -> None:
        if self._before is None:
            self._whole = self.array.copy()
        kernels.settle_votes(
            self._whole,
            self._before,
            means=beside,
            tallies=tallies,
            result=self.array,
            shared=SHARED,
            ranks=self.state.channel.size,
        )
        # Where some rank's numbers are not finite, nothing was received. This rank keeps its own
        # for the next step, except numbers that are not finite: these would stay so for ever.
        self.state.kept[self.name] = self._whole


def _vote(state: HookState, bucket: Any, hook: str, kind: type[_Vote]) -> OutcomeWork:
    tensor, name = bucket.buffer(), state.name(bucket)
    if tensor.layout != torch.strided:
        return send_sparse(state, hook, tensor, name, None)
    lent = array_of(tensor)
    vote = kind(state, name, lent)
    return send(state, hook, tensor, lent.array.nbytes, vote.begin, vote.finish)
