# SPDX-License-Identifier: Apache-2.0
"""The blocking collectives. Gradients flow through those that are not in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from p4reduce.horovod import operations
from p4reduce.horovod.compression import Compression
from p4reduce.horovod.context import ProcessSet, global_process_set, integers, rank
from p4reduce.horovod.errors import internal
from p4reduce.horovod.handles import synchronize
from p4reduce.horovod.operations import Average, ReduceOp, Sum, operation_of


class _Allreduce(torch.autograd.Function):
    """Of a list of tensors; the gradient of a sum of ranks is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.settings = settings
        name, op, prescale, postscale, process_set, precision = settings
        handle = operations.grouped_allreduce_async(
            tensors, None, name, op, prescale, postscale, process_set, precision=precision
        )
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, *_Allreduce.apply((None, *ctx.settings[1:]), *gradients)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        result = synchronize(operations.allgather_async(tensor, name, process_set))
        ctx.rows, ctx.process_set = len(tensor), process_set
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        mean = allreduce(gradient, process_set=ctx.process_set)
        rows = allgather(integers([ctx.rows]), process_set=ctx.process_set)
        first = int(rows[: ctx.process_set.rank()].sum())
        return mean.narrow(0, first, ctx.rows), None, None


class _HorovodBroadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: Any, process_set: Any) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(operations.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        mean = allreduce(gradient, process_set=ctx.process_set)
        return mean if rank() == ctx.root else torch.zeros_like(mean), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Any, process_set: Any) -> Any:
        handle = operations.alltoall_async(tensor, splits, name, process_set)
        output, received = synchronize(handle)
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, received: Any) -> Any:
        back, _ = _Alltoall.apply(gradient, ctx.received, None, ctx.process_set)
        return back, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, settings: tuple[Any, ...]) -> Any:
        ctx.settings = settings
        return synchronize(operations.reducescatter_async(tensor, *settings))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _, op, process_set, prescale, postscale = ctx.settings
        factor = prescale * postscale * (process_set.size() if op == Sum else 1)
        return allgather(gradient * factor, process_set=process_set), None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine a tensor with the other ranks' tensors; see `operations.allreduce_async_`.

    Args:
        tensor: of the same shape and dtype on all ranks.
        average: Horovod's argument for older programs.
        name: the same on all ranks.
        compression: `Compression.none`, `Compression.fp16`, or a class with the same two methods.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: multiplies the tensor before.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
    """
    (result,) = grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine a tensor with the other ranks' tensors, in place."""
    handle = operations.allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return handle.wait()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Combine tensors with those at the same places of the other ranks' lists, as `allreduce`."""
    known = operation_of(op, average)
    packed = [compression.compress(tensor) for tensor in tensors]
    precision = getattr(compression, "precision", None)
    everything = range(len(packed))
    groups: list[tuple[Sequence[int], str | None]] = [(everything, None)]
    if precision is not None:  # which integers cannot have
        floats = [n for n in everything if packed[n][0].dtype.is_floating_point]
        groups = [(floats, precision), (sorted(set(everything).difference(floats)), None)]
    results: dict[int, torch.Tensor] = {}
    for numbers, lanes in groups:
        if numbers:
            settings = name, known, prescale_factor, postscale_factor, process_set, lanes
            some = _Allreduce.apply(settings, *(packed[n][0] for n in numbers))
            results |= zip(numbers, some, strict=True)
    return [compression.decompress(results[n], packed[n][1]) for n in everything]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Combine tensors with those at the same places of the other ranks' lists, in place."""
    handle = operations.grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    results: list[torch.Tensor] = handle.wait()
    return results


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Join all ranks' tensors along the first dimension, in which they may differ."""
    return _Allgather.apply(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allgather` of each tensor of a list."""
    names = [None if name is None else f"{name}.{number}" for number in range(len(tensors))]
    return [allgather(tensor, one, process_set) for tensor, one in zip(tensors, names, strict=True)]


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Give all ranks a copy of one rank's tensor."""
    return _HorovodBroadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Give all ranks one rank's tensor, in place."""
    handle = operations.broadcast_async_(tensor, root_rank, name, process_set)
    return handle.wait()


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows, as `operations.alltoall_async` does.

    Returns:
        What this rank gets; with `splits` also how many rows come from each rank.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine the ranks' tensors, and give each rank some rows.

    `compression` only rounds; the lanes keep 32 bits.
    """
    packed, context = compression.compress(tensor)
    settings = name, op, process_set, prescale_factor, postscale_factor
    result = _Reducescatter.apply(packed, settings)
    return compression.decompress(result, context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of each tensor of a list."""
    names = [None if name is None else f"{name}.{number}" for number in range(len(tensors))]
    return [
        reducescatter(tensor, one, compression, op, process_set, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, names, strict=True)
    ]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it. Raises HorovodInternalError."""
    with internal():
        process_set.backend.barrier().wait()
