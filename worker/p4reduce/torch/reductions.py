# SPDX-License-Identifier: Apache-2.0
"""Sums through the switch: all_reduce, reduce, reduce_scatter, and which are possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from p4reduce.torch.channel import Channel
from p4reduce.torch.options import with_fields
from p4reduce.torch.sparse import all_reduce_sparse, sparse_reason
from p4reduce.torch.tensors import (
    REDUCIBLE,
    UNSCALED,
    Scaling,
    array_of,
    bytes_of,
    nothing,
    output_array,
)
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation

T = TypeVar("T")


def operation_name(operation: Any) -> str:
    """Return "SUM" for ReduceOp.SUM, given as either of torch's two types."""
    # The comparison is that of ReduceOp, which knows both types; RedOpType's knows one.
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM"):
        if operation == getattr(dist.ReduceOp, name):
            return name
    return str(operation)


def scaling_of(tensors: Sequence[torch.Tensor], operation: Any, size: int) -> Scaling:
    """Return what a reduction does beside the sum, or beside the mean of floats.

    Args:
        tensors: to be reduced.
        operation: torch's.
        size: ranks of the group.

    Raises:
        ValueError: PREMUL_SUM of integers, or either of sparse tensors.
    """
    name = operation_name(operation)
    if name == "PREMUL_SUM":
        scaling = Scaling(factor=operation.__getstate__()[1])  # torch shows it in no other way
        if not all(tensor.dtype.is_floating_point for tensor in tensors):
            raise ValueError(f"PREMUL_SUM of {_dtypes(tensors)}: it multiplies floats; use SUM")
    elif name == "AVG" and not all(one.is_floating_point() or one.is_complex() for one in tensors):
        scaling = Scaling(divisor=size)
    else:
        return UNSCALED
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise ValueError(
            f"{name} of a sparse tensor of {_dtypes(tensors)}: sparse ones are summed (SUM), and "
            "floats averaged (AVG)"
        )
    return scaling


def _dtypes(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in tensors))


def summing(options: T, scaling: Scaling) -> T:
    """Return options for Gloo, which is to sum only where a scaling does the rest."""
    if scaling is UNSCALED:
        return options
    return with_fields(options, type(options), reduceOp=dist.ReduceOp.SUM)


def sum_reason(
    tensors: Sequence[torch.Tensor], operation: Any, scaling: Scaling = UNSCALED
) -> str | None:
    """Return why the switch cannot do a reduction, or None if it can."""
    name = operation_name(operation)
    if name not in ("SUM", "AVG") and scaling is UNSCALED:
        return name
    for tensor in tensors:
        if tensor.layout != torch.strided:
            reason = sparse_reason(tensor)
            if reason is not None:
                return reason
        dtype = tensor.dtype
        scaled = scaling is not UNSCALED or name == "SUM"
        if scaling.dtype(dtype) not in REDUCIBLE or not (scaled or dtype.is_floating_point):
            return _dtypes([tensor]) + ("" if name == "SUM" else f" {name}")
    return None


def scatter_reason(
    collective: str,
    output: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    operation: Any,
    scaling: Scaling,
    place: tuple[int, int],
) -> str | None:
    """Return `sum_reason` of a reduce_scatter.

    Args:
        collective: its name, for errors.
        output: of this rank's sum.
        inputs: one for each rank, or one that is all of them in a row.
        operation: torch's.
        scaling: of `scaling_of`.
        place: this process's rank, and the number of ranks.

    Raises:
        ValueError: inputs and output do not fit.
    """
    rank, size = place
    whole = sum(one.numel() for one in inputs)
    if len(inputs) not in (1, size):
        raise ValueError(f"{collective}: {len(inputs)} inputs for {size} ranks")
    own = inputs[rank].numel() if len(inputs) == size else whole / size
    if output.numel() != own:
        raise ValueError(
            f"{collective}: the output has {output.numel()} elements; this rank's part of the "
            f"inputs, {whole} elements for {size} ranks, has {own:g}"
        )
    if len({tensor.dtype for tensor in (output, *inputs)}) != 1:
        raise ValueError(
            f"{collective}: the output is of {_dtypes([output])}, the inputs of {_dtypes(inputs)}"
        )
    if any(tensor.layout != torch.strided for tensor in (output, *inputs)):
        return "sparse"
    return sum_reason(inputs, operation, scaling)


def all_reduce(
    channel: Channel,
    tensor: torch.Tensor,
    options: Any,
    name: str | None = None,
    precision: str | None = None,
    scaling: Scaling = UNSCALED,
) -> OutcomeWork:
    """Reduce a tensor in place.

    Args:
        channel: of the group.
        tensor: dense or sparse.
        options: torch's.
        name: that the ranks have to agree on as well.
        precision: of a dense tensor's lanes, "int16"; None: all bits.
        scaling: of `scaling_of`.
    """
    named = _name(tensor, scaling, name)
    operation = _operation(options, scaling)
    if tensor.layout != torch.strided:
        return all_reduce_sparse(channel, tensor, operation, options, named)
    lent = array_of(tensor, scaling)
    array = lent.shaped(tensor)
    return channel.start(
        "all_reduce",
        bytes_of([tensor]),
        lambda timeout: channel.comm.allreduce_async(
            array,
            operation,
            named,
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
    scaling: Scaling = UNSCALED,
) -> OutcomeWork:
    """Reduce many tensors, each in place. `precision` and `scaling` are as for `all_reduce`."""
    lent = [array_of(tensor, scaling) for tensor in tensors]
    arrays = [one.shaped(tensor) for one, tensor in zip(lent, tensors, strict=True)]
    wanted = [None] * len(tensors) if given is None else given
    names = [
        _name(tensor, scaling, name) or "" for tensor, name in zip(tensors, wanted, strict=True)
    ]

    def put_back() -> None:
        for one in lent:
            one.put_back()

    return channel.start(
        "all_reduce_coalesced",
        bytes_of(tensors),
        lambda timeout: channel.comm.grouped_allreduce_async(
            arrays, _operation(options, scaling), names, arrays, timeout, precision=precision
        ),
        options=options,
        result=list(tensors),
        finish=put_back,
    )


def reduce(
    channel: Channel, tensor: torch.Tensor, options: Any, scaling: Scaling = UNSCALED
) -> OutcomeWork:
    """Reduce a tensor, in place on the root. `scaling` is of `scaling_of`."""
    lent = array_of(tensor, scaling)
    array = lent.shaped(tensor)
    mine = channel.rank == options.rootRank
    return channel.start(
        "reduce",
        bytes_of([tensor]),
        lambda timeout: channel.comm.reduce_async(
            array,
            _operation(options, scaling),
            root=options.rootRank,
            name=_name(tensor, scaling),
            out=array if mine else None,
            timeout=timeout,
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
    scaling: Scaling = UNSCALED,
) -> OutcomeWork:
    """Reduce one tensor for each rank; each gets its own.

    Args:
        channel: of the group.
        collective: for the statistics.
        output: of this rank's sum.
        inputs: one for each rank, or one that is all of them in a row.
        options: torch's.
        scaling: of `scaling_of`.
    """
    arrays = [array_of(tensor, scaling).array for tensor in inputs]
    if len(arrays) == 1:
        array = arrays[0]
        counts = [array.size // channel.size] * channel.size
    else:
        array, counts = np.concatenate(arrays), [one.size for one in arrays]
    name = channel.named(_name(output, scaling), [tensor.shape for tensor in inputs])
    target = output_array(output, scaling)
    if np.may_share_memory(array, target.array):
        array = array.copy()
    return channel.start(
        collective,
        bytes_of(inputs),
        lambda timeout: channel.comm.reduce_scatter_async(
            array,
            _operation(options, scaling),
            name=name,
            out=target.array,
            timeout=timeout,
            counts=counts,
        ),
        options=options,
        result=[output],
        finish=target.put_back,
    )


def _operation(options: Any, scaling: Scaling) -> Operation:
    mean = scaling is UNSCALED and options.reduceOp == dist.ReduceOp.AVG
    return Operation.MEAN if mean else Operation.SUM


def _name(tensor: torch.Tensor, scaling: Scaling, given: str | None = None) -> str | None:
    """Return the name given, and what makes ranks differ whose calls are the same sum."""
    marks = [given] if given else []
    if scaling is not UNSCALED:
        marks.append("AVG" if scaling.factor is None else "PREMUL_SUM")
    if tensor.dtype == torch.bfloat16 or scaling.dtype(tensor.dtype) != tensor.dtype:
        marks.append(_dtypes([tensor]))
    return ", ".join(marks) or None
