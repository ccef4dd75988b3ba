# SPDX-License-Identifier: Apache-2.0
"""Sums through the switch: all_reduce, reduce, reduce_scatter, and which are possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from p4reduce.torch.channel import Channel
from p4reduce.torch.sparse import all_reduce_sparse, sparse_reason
from p4reduce.torch.tensors import REDUCIBLE, array_of, bytes_of, nothing, output_array
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation


def operation_name(operation: Any) -> str:
    """Return "SUM" for ReduceOp.SUM, given as either of torch's two types."""
    # The comparison is that of ReduceOp, which knows both types; RedOpType's knows one.
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
        if operation == getattr(dist.ReduceOp, name):
            return name
    return str(operation)


def sum_reason(tensors: Sequence[torch.Tensor], operation: Any) -> str | None:
    """Return why the switch cannot do a reduction, or None if it can."""
    name = operation_name(operation)
    if name not in ("SUM", "AVG"):
        return name
    for tensor in tensors:
        if tensor.layout != torch.strided:
            reason = sparse_reason(tensor)
            if reason is not None:
                return reason
        dtype = tensor.dtype
        if dtype not in REDUCIBLE or (name == "AVG" and not dtype.is_floating_point):
            return str(dtype).removeprefix("torch.") + (" AVG" if name == "AVG" else "")
    return None


def scatter_reason(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[Sequence[torch.Tensor]],
    operation: Any,
    rank: int,
) -> str | None:
    """Return `sum_reason` of a reduce_scatter of lists. Gloo reports lists that do not fit."""
    if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) <= rank:
        return "lists that do not fit"
    if inputs[0][rank].numel() != outputs[0].numel():
        return "shapes that do not fit"
    return _dense_reason([*outputs, *inputs[0]], operation)


def split_reason(
    output: torch.Tensor, tensor: torch.Tensor, operation: Any, size: int
) -> str | None:
    """Return `sum_reason` of a reduce_scatter of one tensor. Gloo reports one that does not fit."""
    if output.numel() * size != tensor.numel():
        return "shapes that do not fit"
    return _dense_reason([output, tensor], operation)


def _dense_reason(tensors: Sequence[torch.Tensor], operation: Any) -> str | None:
    if any(tensor.layout != torch.strided for tensor in tensors):
        return "sparse"
    if len({tensor.dtype for tensor in tensors}) != 1:
        return "dtypes that do not fit"
    return sum_reason(tensors, operation)


def all_reduce(
    channel: Channel,
    tensor: torch.Tensor,
    options: Any,
    name: str | None = None,
    precision: str | None = None,
) -> OutcomeWork:
    """Sum a tensor in place.

    Args:
        channel: of the group.
        tensor: dense or sparse.
        options: torch's.
        name: that the ranks have to agree on as well.
        precision: of a dense tensor's lanes, "int16"; None: all bits.
    """
    if tensor.layout != torch.strided:
        named = _name(tensor, name)
        return all_reduce_sparse(channel, tensor, _operation(options), options, named)
    lent = array_of(tensor)
    array = lent.shaped(tensor)
    return channel.start(
        "all_reduce",
        bytes_of([tensor]),
        lambda timeout: channel.comm.allreduce_async(
            array,
            _operation(options),
            _name(tensor, name),
            array,
            timeout,
            precision=precision,
        ),
        options=options,
        result=[tensor],
        finish=lent.put_back,
    )


def all_reduce_coalesced(
    channel: Channel,
    tensors: Sequence[torch.Tensor],
    options: Any,
    given: Sequence[str | None] | None = None,
    precision: str | None = None,
) -> OutcomeWork:
    """Sum many tensors, each in place. `precision` is as for `all_reduce`."""
    lent = [array_of(tensor) for tensor in tensors]
    arrays = [one.shaped(tensor) for one, tensor in zip(lent, tensors, strict=True)]
    wanted = [None] * len(tensors) if given is None else given
    names = [_name(tensor, name) or "" for tensor, name in zip(tensors, wanted, strict=True)]

    def put_back() -> None:
        for one in lent:
            one.put_back()

    return channel.start(
        "all_reduce_coalesced",
        bytes_of(tensors),
        lambda timeout: channel.comm.grouped_allreduce_async(
            arrays, _operation(options), names, arrays, timeout, precision=precision
        ),
        options=options,
        result=list(tensors),
        finish=put_back,
    )


def reduce(channel: Channel, tensor: torch.Tensor, options: Any) -> OutcomeWork:
    """Sum a tensor, in place on the root."""
    lent = array_of(tensor)
    array = lent.shaped(tensor)
    mine = channel.rank == options.rootRank
    return channel.start(
        "reduce",
        bytes_of([tensor]),
        lambda timeout: channel.comm.reduce_async(
            *(array, _operation(options), options.rootRank, _name(tensor)),
            *(array if mine else None, timeout),
        ),
        options=options,
        result=[tensor],
        finish=lent.put_back if mine else nothing,
    )


def reduce_scatter(
    channel: Channel,
    collective: str,
    output: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    options: Any,
) -> OutcomeWork:
    """Sum one tensor for each rank; each gets its own.

    Args:
        channel: of the group.
        collective: for the statistics.
        output: of this rank's sum.
        inputs: one for each rank, or one that is all of them in a row.
        options: torch's.
    """
    arrays = [array_of(tensor).array for tensor in inputs]
    if len(arrays) == 1:
        array = arrays[0]
        counts = [array.size // channel.size] * channel.size
    else:
        array, counts = np.concatenate(arrays), [one.size for one in arrays]
    name = channel.named(_name(output), [tensor.shape for tensor in inputs])
    target = output_array(output)
    if np.may_share_memory(array, target.array):
        array = array.copy()
    return channel.start(
        collective,
        bytes_of(inputs),
        lambda timeout: channel.comm.reduce_scatter_async(
            *(array, _operation(options), name, target.array, timeout), counts=counts
        ),
        options=options,
        result=[output],
        finish=target.put_back,
    )


def _operation(options: Any) -> Operation:
    return Operation.MEAN if options.reduceOp == dist.ReduceOp.AVG else Operation.SUM


def _name(tensor: torch.Tensor, given: str | None = None) -> str | None:
    """Return the name given, and what makes ranks differ that widen and such that do not."""
    if tensor.dtype != torch.bfloat16:
        return given
    return "bfloat16" if given is None else f"{given}, bfloat16"
