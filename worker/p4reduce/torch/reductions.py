# SPDX-License-Identifier: Apache-2.0
"""Reductions: all_reduce, reduce, reduce_scatter; and which of them the switch can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from p4reduce.torch.calls import (
    PART,
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
from p4reduce.torch.options import with_fields
from p4reduce.torch.sparse import all_reduce_sparse, sparse_reason
from p4reduce.torch.tensors import (
    REDUCIBLE,
    UNSCALED,
    Dense,
    Scaling,
    array_of,
    bytes_of,
    nothing,
    output_array,
    write,
)
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation

T = TypeVar("T")


def all_reduce_call(place: Place, tensors: Tensors, options: Any) -> TorchCall:
    """Return the call that reduces a tensor in place, by a sum or another operation."""
    operation = options.reduceOp
    scaling = scaling_of(tensors, operation, place.size)
    reason = sum_reason(tensors, operation, scaling)
    if len(tensors) != 1:
        reason = reason or f"{len(tensors)} tensors"
    in_parts = reason is None and tensors[0].layout == torch.strided and tensors[0].numel() > PART

    def parts() -> tuple[list[TorchCall], Finish]:
        dense = Dense(tensors)
        pieces = dense.tensors[0].view(-1).split(PART)
        return [all_reduce_call(place, [one], options) for one in pieces], dense.put_back

    return call_in_place(
        "all_reduce",
        tensors,
        options,
        reason=reason,
        switch=lambda channel: all_reduce(channel, tensors[0], options, scaling=scaling),
        gloo=lambda group, dense: group.allreduce(dense, summing(options, scaling)),
        scaling=scaling,
        parts=parts if in_parts else None,
    )


def all_reduce_coalesced_call(place: Place, tensors: Tensors, options: Any) -> TorchCall:
    """Return the call that reduces many tensors, each in place."""
    scaling = scaling_of(tensors, options.reduceOp, place.size)
    return call_in_place(
        "all_reduce_coalesced",
        tensors,
        options,
        reason=sum_reason(tensors, options.reduceOp, scaling) or _any_sparse_reason(tensors),
        switch=lambda channel: all_reduce_coalesced(channel, tensors, options, scaling=scaling),
        gloo=lambda group, dense: group.allreduce_coalesced(dense, summing(options, scaling)),
        scaling=scaling,
    )


def reduce_call(place: Place, tensors: Tensors, options: Any) -> TorchCall:
    """Return the call that reduces a tensor for one rank."""
    scaling = scaling_of(tensors, options.reduceOp, place.size)
    return call_in_place(
        "reduce",
        tensors,
        options,
        reason=sum_reason(tensors, options.reduceOp, scaling) or _any_sparse_reason(tensors),
        switch=lambda channel: reduce(channel, tensors[0], options, scaling),
        gloo=lambda group, dense: group.reduce(dense, summing(options, scaling)),
        scaling=scaling,
        writes=place.rank == options.rootRank,
    )


def reduce_scatter_lists_call(
    place: Place, outputs: Tensors, inputs: Sequence[Tensors], options: Any
) -> TorchCall:
    """Return the call that reduces a list of tensors, and gives each rank one of them.

    Raises:
        ValueError: there is more than one list.
    """
    if len(outputs) != 1 or len(inputs) != 1:
        raise ValueError(
            f"reduce_scatter: {len(outputs)} outputs and {len(inputs)} lists of inputs; one of "
            "each is needed"
        )
    return _reduce_scatter_call("reduce_scatter", place, outputs[0], inputs[0], options)


def reduce_scatter_tensor_call(
    place: Place, output: torch.Tensor, tensor: torch.Tensor, options: Any
) -> TorchCall:
    """Return the call that reduces a tensor, and gives each rank a part of it."""
    return _reduce_scatter_call("reduce_scatter_tensor", place, output, [tensor], options)


def _reduce_scatter_call(
    name: str, place: Place, output: torch.Tensor, inputs: Tensors, options: Any
) -> TorchCall:
    """Reduce one tensor for each rank, or one that is all of them in a row."""
    scaling = scaling_of(inputs, options.reduceOp, place.size)
    reason = scatter_reason(name, output, inputs, options.reduceOp, scaling, place)

    def run(group: Any) -> tuple[Any, Finish]:
        # As Gloo does it, whose own work never says that it is complete.
        whole = torch.cat([one.reshape(-1) for one in Dense(inputs, scaling).tensors])
        count = output.numel()
        skipped = inputs[: place.rank]
        before = sum(one.numel() for one in skipped) if len(inputs) > 1 else place.rank * count
        own = whole.narrow(0, before, count)
        sum_options = summing(with_fields(options, AllreduceOptions), scaling)
        return group.allreduce([whole], sum_options), lambda: write(output, scaling.after(own))

    def parts() -> tuple[list[TorchCall], Finish]:
        given, target = Dense(inputs).tensors, Dense([output])
        rows = given if len(given) > 1 else given[0].detach().view(place.size, -1).unbind(0)
        sums = target.tensors[0]
        apart = [
            read_apart(row, [sums], own=0 if rank == place.rank else -1)
            for rank, row in enumerate(rows)
        ]
        calls = [
            _reduce_scatter_call(name, place, piece, those, options)
            for piece, *those in pieces_of([sums, *apart], place.size)
        ]
        return calls, target.put_back

    even = len(inputs) == 1 or all(one.numel() == output.numel() for one in inputs)
    in_parts = reason is None and even and is_long(output.numel(), place.size)
    return TorchCall(
        name,
        options,
        reason,
        run,
        lambda channel: reduce_scatter(channel, name, output, inputs, options, scaling),
        reads=inputs,
        writes=[output],
        result=[output],
        agreed=inputs,
        counted=inputs,
        parts=parts if in_parts else None,
    )


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
        # Without a factor the switch sums any numbers, and takes means of floats only.
        switch_sums = scaling is not UNSCALED or name == "SUM"
        if scaling.dtype(dtype) not in REDUCIBLE or not (switch_sums or dtype.is_floating_point):
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


def _any_sparse_reason(tensors: Tensors) -> str | None:
    return "sparse" if any(tensor.layout != torch.strided for tensor in tensors) else None
