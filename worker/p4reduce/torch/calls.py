# SPDX-License-Identifier: Apache-2.0
"""A collective that torch asks for: what it reads and writes, and who can run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import UNSCALED, Dense, Scaling, bytes_of, nothing
from p4reduce.torch.work import OutcomeWork

Tensors = Sequence[torch.Tensor]
Finish = Callable[[], None]
Parts = Callable[[], "tuple[list[TorchCall], Finish]"]

PART = 1 << 20
"""Elements of a part of a long call. All lane formats have whole blocks of it."""


class Place(NamedTuple):
    """This process's rank in a group, and the number of ranks."""

    rank: int
    size: int


@dataclass(slots=True)
class TorchCall:
    """A collective whose arguments fit. Nothing of its tensors is read before it starts.

    Attributes:
        name: for statistics, errors and torch's profiler, such as "all_reduce".
        options: torch's, of which the timeout counts.
        reason: why the switch cannot run it; None: it can.
        gloo: runs it by the inner group. Returns torch's work, and what is to be done at its end.
        switch: starts it by the switch; None: only Gloo does it.
        reads: the tensors that this rank gives.
        writes: those that receive the result on this rank.
        result: what the work's future gives.
        agreed: tensors whose dtypes and shapes the ranks compare if Gloo runs it.
        counted: this rank's input, whose bytes count in the statistics of Gloo.
        targets: those that could receive it on any rank, which are checked on all; None: `writes`.
        parts: returns the same as several calls, and what is to be done when all have ended; None:
            it is not long enough for that.
    """

    name: str
    options: Any
    reason: str | None
    gloo: Callable[[Any], tuple[Any, Finish]]
    switch: Callable[[Channel], OutcomeWork] | None
    reads: Tensors
    writes: Tensors
    result: Any
    agreed: Tensors
    counted: Tensors
    targets: Tensors | None = None
    parts: Parts | None = None


def call_in_place(
    name: str,
    tensors: Tensors,
    options: Any,
    *,
    reason: str | None,
    switch: Callable[[Channel], OutcomeWork],
    gloo: Callable[[Any, list[torch.Tensor]], Any],
    scaling: Scaling = UNSCALED,
    reads: bool = True,
    writes: bool = True,
    parts: Parts | None = None,
) -> TorchCall:
    """Return a call that writes its result to the tensors that it reads, if it does so here.

    Args:
        name: of the call.
        tensors: dense or sparse.
        options: torch's.
        reason: why the switch cannot run it; None: it can.
        switch: starts it by the switch.
        gloo: calls a method of the group that it is given, with dense tensors.
        scaling: what a reduction does beside what Gloo computes.
        reads: whether this rank's numbers count.
        writes: whether this rank gets the result.
        parts: as the call has them.
    """

    def run(group: Any) -> tuple[Any, Finish]:
        dense = Dense(tensors, scaling)
        return gloo(group, dense.tensors), dense.put_back if writes else nothing

    return TorchCall(
        name,
        options,
        reason,
        run,
        switch,
        reads=tensors if reads else [],
        writes=tensors if writes else [],
        result=tensors,
        agreed=tensors,
        counted=tensors,
        targets=tensors,
        parts=parts,
    )


def is_long(elements: int, ranks: int) -> bool:
    """Whether a call goes in parts in which each rank has so many elements of its own."""
    return ranks > 1 and elements * ranks > PART


def pieces_of(tensors: Tensors, ranks: int) -> list[tuple[torch.Tensor, ...]]:
    """Return equally long pieces of tensors, of `PART` elements for all ranks together.

    Args:
        tensors: contiguous, and equally long.
        ranks: that each have such a tensor.
    """
    step = max(PART // ranks, 1)
    return list(zip(*(one.detach().view(-1).split(step) for one in tensors), strict=True))


def read_apart(tensor: torch.Tensor, written: Tensors, own: int) -> torch.Tensor:
    """Return a tensor, or a copy of it if a piece could be written before it is read.

    Args:
        tensor: contiguous; its pieces are read one after the other.
        written: contiguous; what is written, piece by piece as well.
        own: the one of these that may be the tensor itself, so that its pieces are read before.
    """
    for number, other in enumerate(written):
        is_itself = number == own and other.data_ptr() == tensor.data_ptr()
        if not is_itself and _overlap(tensor, other):
            return tensor.clone()
    return tensor


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    first: int = one.data_ptr()
    second: int = other.data_ptr()
    return first < second + bytes_of([other]) and second < first + bytes_of([one])
