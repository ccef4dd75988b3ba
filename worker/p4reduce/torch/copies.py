# SPDX-License-Identifier: Apache-2.0
"""Copies through the switch, bit for bit and of any dtype: broadcast, all_gather; and barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import (
    Array,
    bytes_array_of,
    bytes_of,
    memory_of,
    nothing,
    write,
)
from p4reduce.torch.work import OutcomeWork


def copy_reason(tensors: Sequence[torch.Tensor]) -> str | None:
    """Return why the switch cannot copy tensors, or None if it can."""
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_quantized:
            return "sparse or quantized"
    return None


def list_reason(
    outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], size: int
) -> str | None:
    """Return `copy_reason` of an all_gather of lists. Gloo reports lists that do not fit."""
    if len(outputs) != 1 or len(inputs) != 1 or len(outputs[0]) != size:
        return "lists that do not fit"
    tensor = inputs[0]
    if any(one.dtype != tensor.dtype or one.shape != tensor.shape for one in outputs[0]):
        return "shapes that do not fit"
    return copy_reason([tensor, *outputs[0]])


def whole_reason(output: torch.Tensor, tensor: torch.Tensor, size: int) -> str | None:
    """Return `copy_reason` of an all_gather into one tensor. Gloo reports one that does not fit."""
    if output.numel() != tensor.numel() * size or output.dtype != tensor.dtype:
        return "shapes that do not fit"
    return copy_reason([tensor, output])


def broadcast(
    channel: Channel, tensor: torch.Tensor, options: Any, name: str | None = None
) -> OutcomeWork:
    """Give all ranks the root's tensor, in place. The names must agree as well."""
    root = options.rootRank
    lent = bytes_array_of(tensor)
    array = lent.shaped(tensor)
    return channel.start(
        "broadcast",
        bytes_of([tensor]) if channel.rank == root else 0,
        lambda timeout: channel.comm.broadcast_async(
            array, root, _name(tensor, name), array, timeout
        ),
        options=options,
        result=[tensor],
        finish=nothing if channel.rank == root else lent.put_back,
    )


def all_gather(
    channel: Channel,
    collective: str,
    outputs: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    options: Any,
) -> OutcomeWork:
    """Give all ranks the tensors of all.

    Args:
        channel: of the group.
        collective: for the statistics.
        outputs: one for each rank's tensor, or one that is all of them in a row.
        tensor: this rank's.
        options: torch's.
    """
    mine, name = bytes_array_of(tensor).array, channel.named(_name(tensor), [tensor.shape])
    counts = [mine.size] * channel.size
    if len(outputs) == 1 and outputs[0].is_contiguous():
        lent = bytes_array_of(outputs[0])
        room, put_back = lent.array, lent.put_back
        if np.may_share_memory(mine, room) and not _is_own_part(mine, room, channel.rank):
            mine = mine.copy()
    else:
        whole = torch.empty(tensor.numel() * channel.size, dtype=tensor.dtype)
        room = memory_of(whole, np.uint8)

        def put_back() -> None:
            parts = whole.view(len(outputs), whole.numel() // len(outputs))
            for output, part in zip(outputs, parts, strict=True):
                write(output, part)

    return channel.start(
        collective,
        bytes_of([tensor]),
        lambda timeout: channel.comm.allgather_async(mine, counts, name, room, timeout),
        options=options,
        result=list(outputs),
        finish=put_back,
    )


def barrier(channel: Channel, options: Any) -> OutcomeWork:
    """Make all ranks meet."""
    return channel.start(
        "barrier",
        0,
        lambda timeout: channel.meet("barrier", timeout),
        options=options,
        result=[],
    )


def _name(tensor: torch.Tensor, given: str | None = None) -> str:
    """Return a mark by which ranks with different dtypes are found: on the way all are bytes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype if given is None else f"{given}, {dtype}"


def _is_own_part(mine: Array, room: Array, rank: int) -> bool:
    return mine.ctypes.data == room.ctypes.data + rank * mine.nbytes
