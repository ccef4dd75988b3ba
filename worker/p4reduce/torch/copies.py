# SPDX-License-Identifier: Apache-2.0
"""Copies, bit for bit and of any dtype: broadcast, all_gather; and barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from p4reduce.torch.calls import (
    Finish,
    Place,
    Tensors,
    TorchCall,
    call_in_place,
    is_long,
    pieces_of,
    read_apart,
)
from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import (
    Array,
    Dense,
    bytes_array_of,
    bytes_of,
    memory_of,
    nothing,
    write,
)
from p4reduce.torch.work import OutcomeWork


def broadcast_call(place: Place, tensors: Tensors, options: Any) -> TorchCall:
    """Return the call that copies one rank's tensor to all."""
    reason = copy_reason(tensors)
    if len(tensors) != 1:
        reason = reason or f"{len(tensors)} tensors"
    return call_in_place(
        "broadcast",
        tensors,
        options,
        reason=reason,
        switch=lambda channel: broadcast(channel, tensors[0], options),
        gloo=lambda group, dense: group.broadcast(dense, options),
        reads=place.rank == options.rootRank,
    )


def all_gather_lists_call(
    place: Place, outputs: Sequence[Tensors], inputs: Tensors, options: Any
) -> TorchCall:
    """Return the call that copies all ranks' tensors to all, as a list."""

    def run(group: Any) -> tuple[Any, Finish]:
        rows = [Dense(row) for row in outputs]
        work = group.allgather([row.tensors for row in rows], Dense(inputs).tensors, options)
        return work, lambda: put_back(rows)

    def parts() -> tuple[list[TorchCall], Finish]:
        room, (mine,) = Dense(outputs[0]), Dense(inputs).tensors
        return _gather_in_parts(place, room.tensors, mine, options), room.put_back

    reason = list_reason(outputs, inputs, place.size)
    return TorchCall(
        "all_gather",
        options,
        reason,
        run,
        lambda channel: all_gather(channel, "all_gather", outputs[0], inputs[0], options),
        reads=inputs,
        writes=[one for row in outputs for one in row],
        result=result_of(outputs),
        agreed=inputs,
        counted=inputs,
        parts=parts if reason is None and is_long(inputs[0].numel(), place.size) else None,
    )


def all_gather_tensor_call(
    place: Place, output: torch.Tensor, tensor: torch.Tensor, options: Any
) -> TorchCall:
    """Return the call that copies all ranks' tensors to all, as one."""

    def run(group: Any) -> tuple[Any, Finish]:
        room, (mine,) = Dense([output]), Dense([tensor]).tensors
        mine = mine.view(1) if mine.dim() == 0 else mine  # Gloo wants a dimension
        return group._allgather_base(room.tensors[0], mine, options), room.put_back

    def parts() -> tuple[list[TorchCall], Finish]:
        room, (mine,) = Dense([output]), Dense([tensor]).tensors
        rows = room.tensors[0].detach().view(place.size, -1).unbind(0)
        return _gather_in_parts(place, rows, mine, options), room.put_back

    reason = whole_reason(output, tensor, place.size)
    return TorchCall(
        "all_gather_into_tensor",
        options,
        reason,
        run,
        lambda channel: all_gather(channel, "all_gather_into_tensor", [output], tensor, options),
        reads=[tensor],
        writes=[output],
        result=[output],
        agreed=[tensor],
        counted=[tensor],
        parts=parts if reason is None and is_long(tensor.numel(), place.size) else None,
    )


def _gather_in_parts(
    place: Place, rows: Tensors, mine: torch.Tensor, options: Any
) -> list[TorchCall]:
    """Return calls that copy pieces of all ranks' tensors to rows, one for each rank."""
    given = read_apart(mine, rows, own=place.rank)
    return [
        all_gather_lists_call(place, [targets], [piece], options)
        for piece, *targets in pieces_of([given, *rows], place.size)
    ]


def barrier_call(place: Place, options: Any) -> TorchCall:
    """Return the call that ends when all ranks have made it."""
    return TorchCall(
        "barrier",
        options,
        None,
        lambda group: (group.barrier(options), nothing),
        lambda channel: barrier(channel, options),
        reads=[],
        writes=[],
        result=[],
        agreed=[],
        counted=[],
    )


def put_back(rows: Sequence[Dense]) -> None:
    """Write copies back to lists of tensors."""
    for row in rows:
        row.put_back()


def result_of(outputs: Sequence[Tensors]) -> list[Any]:
    """Return the only list of tensors, as Gloo's works do; several as they are."""
    return list(outputs[0]) if len(outputs) == 1 else list(outputs)


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
        whole = torch.empty(tensor.numel() * channel.size, dtype=tensor.dtype, device="cpu")
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
