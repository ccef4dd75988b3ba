# SPDX-License-Identifier: Apache-2.0
"""The asynchronous collectives. `collectives` has the blocking ones.

Sums of floats and of integers up to 32 bits, broadcasts and gathers go through the switch, and
others by the inner Gloo group (docs/pytorch.md has the table). Ranks must start collectives in the
same order. If names are given they are compared, and another order is an error.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceCoalescedOptions, AllreduceOptions, BroadcastOptions

from p4reduce.horovod.context import ProcessSet, global_process_set, integers
from p4reduce.horovod.errors import internal, refused
from p4reduce.horovod.handles import CollectiveHandles
from p4reduce.torch import copies, reductions
from p4reduce.torch.group import TorchCollectives
from p4reduce.torch.options import options_of
from p4reduce.torch.work import OutcomeWork, WorkOutcome


class ReduceOp(enum.IntEnum):
    """The reductions, with Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

_TORCH_OPS = {
    ReduceOp.Average: dist.ReduceOp.SUM,
    ReduceOp.Sum: dist.ReduceOp.SUM,
    ReduceOp.Min: dist.ReduceOp.MIN,
    ReduceOp.Max: dist.ReduceOp.MAX,
    ReduceOp.Product: dist.ReduceOp.PRODUCT,
}


def operation_of(op: ReduceOp | int | None, average: bool | None) -> ReduceOp:
    """Return the operation for `op`, or for the older argument `average`.

    Raises:
        NotImplementedError: Adasum.
        ValueError: both are given, or the operation does not exist.
    """
    if average is not None:
        if op is not None:
            raise ValueError("op supersedes average: give one of them")
        warnings.warn("average: give op=hvd.Average or hvd.Sum", DeprecationWarning, stacklevel=3)
        op = ReduceOp.Average if average else ReduceOp.Sum
    known = ReduceOp.Average if op is None else ReduceOp(op)
    if known == ReduceOp.Adasum:
        raise refused("op=Adasum", "a switch sums; use Average or Sum")
    return known


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    precision: str | None = None,
) -> CollectiveHandles:
    """Start to combine a tensor with the other ranks' tensors, in place.

    Args:
        tensor: of the same shape and dtype on all ranks.
        average: Horovod's argument for older programs.
        name: the same on all ranks; None: not compared.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: multiplies the tensor before.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        precision: of the switch's lanes; Horovod has no such argument.

    Raises:
        NotImplementedError: Adasum.
        HorovodInternalError: a rank is lost.
    """
    known = operation_of(op, average)
    backend = process_set.backend
    _scale(tensor, prescale_factor)
    torch_op = _TORCH_OPS[known]
    with internal():
        channel = backend.channel
        if channel is not None and reductions.sum_reason([tensor], torch_op) is None:
            options = options_of(AllreduceOptions, None, reduceOp=torch_op)
            work = reductions.all_reduce(channel, tensor, options, name, precision)
            works = [backend._track(work)]
        else:
            works = _meeting(backend, "allreduce", name)
            works.append(backend.allreduce([tensor], op=torch_op))
    factor = _final_scaling(known, postscale_factor, process_set)

    def finish() -> torch.Tensor:
        _scale(tensor, *factor)
        return tensor

    return CollectiveHandles(works, finish)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    precision: str | None = None,
) -> CollectiveHandles:
    """Start to combine a tensor with the other ranks' into a new one, as `allreduce_async_`."""
    return allreduce_async_(
        tensor.detach().clone(),
        average,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        precision=precision,
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    precision: str | None = None,
) -> CollectiveHandles:
    """Start to combine tensors with those at the same places of the other ranks' lists, in place.

    As `allreduce_async_`; the handle's result is a list.
    """
    known = operation_of(op, average)
    backend, torch_op, tensors = process_set.backend, _TORCH_OPS[known], list(tensors)
    for tensor in tensors:
        _scale(tensor, prescale_factor)
    names = [None if name is None else f"{name}.{number}" for number in range(len(tensors))]
    dense = all(tensor.layout == torch.strided for tensor in tensors)
    with internal():
        channel = backend.channel
        if channel is not None and dense and reductions.sum_reason(tensors, torch_op) is None:
            options = options_of(AllreduceCoalescedOptions, None, reduceOp=torch_op)
            work = reductions.all_reduce_coalesced(channel, tensors, options, names, precision)
            works = [backend._track(work)]
        else:
            works = _meeting(backend, "grouped allreduce", name)
            works += [backend.allreduce([tensor], op=torch_op) for tensor in tensors]
    factor = _final_scaling(known, postscale_factor, process_set)

    def finish() -> list[torch.Tensor]:
        for tensor in tensors:
            _scale(tensor, *factor)
        return tensors

    return CollectiveHandles(works, finish)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    precision: str | None = None,
) -> CollectiveHandles:
    """Start to combine tensors into new ones, as `grouped_allreduce_async_`."""
    return grouped_allreduce_async_(
        [tensor.detach().clone() for tensor in tensors],
        average,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        precision=precision,
    )


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp | int,
    process_set: ProcessSet = global_process_set,
) -> CollectiveHandles:
    """Start to sum or average a sparse tensor with one sparse dimension, into a new one."""
    return allreduce_async(tensor.coalesce(), None, name, op, process_set=process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> CollectiveHandles:
    """Start to join all ranks' tensors along the first dimension.

    Args:
        tensor: of one dimension or more; the first may differ among ranks. The ranks exchange
            its lengths first, and this call waits for that.
        name: the same on all ranks.
        process_set: the ranks that take part.
    """
    _has_rows("allgather", tensor)
    rows = _all_numbers(process_set, [tensor.shape[0]], _label("allgather", name, tensor))[:, 0]
    longest = int(rows.max())
    mine = tensor.detach()
    if len(mine) < longest:
        filling = mine.new_zeros((longest - len(mine), *mine.shape[1:]))
        mine = torch.cat([mine, filling])
    parts = mine.new_empty((len(rows), *mine.shape))
    with internal():
        work = process_set.backend.all_gather_single(parts, mine.contiguous())

    def finish() -> torch.Tensor:
        return torch.cat([part[:count] for part, count in zip(parts, rows.tolist(), strict=True)])

    return CollectiveHandles([work], finish)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> CollectiveHandles:
    """Start `allgather_async` of each tensor of a list; the result is a list."""
    handles = [
        allgather_async(tensor, None if name is None else f"{name}.{number}", process_set)
        for number, tensor in enumerate(tensors)
    ]
    return CollectiveHandles.of_all(handles)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> CollectiveHandles:
    """Start to give all ranks one rank's tensor, in place.

    Args:
        tensor: of the same shape and dtype on all ranks.
        root_rank: the rank that sends, numbered among all ranks even with a `process_set`.
        name: the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        ValueError: that rank is not in the set.
    """
    backend = process_set.backend
    if root_rank not in process_set.ranks:
        raise ValueError(f"root_rank={root_rank} is not one of {process_set}")
    root = process_set.ranks.index(root_rank)
    with internal():
        channel = backend.channel
        if channel is not None and copies.copy_reason([tensor]) is None:
            options = options_of(BroadcastOptions, None, rootRank=root)
            works = [backend._track(copies.broadcast(channel, tensor, options, name))]
        else:
            works = [*_meeting(backend, "broadcast", name), backend.broadcast([tensor], root=root)]
    return CollectiveHandles(works, lambda: tensor)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> CollectiveHandles:
    """Start to give all ranks a copy of one rank's tensor, as `broadcast_async_`."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> CollectiveHandles:
    """Start to send each rank its rows of this rank's tensor.

    Args:
        tensor: whose first dimension is split.
        splits: how many rows each rank gets; None: equally many.
        name: the same on all ranks.
        process_set: the ranks that take part.

    Returns:
        A handle whose result is what this rank gets, and how many rows come from each rank.

    Raises:
        ValueError: the splits do not fit the tensor. The other ranks time out.
    """
    _has_rows("alltoall", tensor)
    backend, count = process_set.backend, len(process_set.ranks)
    if splits is None:
        if tensor.shape[0] % count:
            raise ValueError(
                f"alltoall: {tensor.shape[0]} rows cannot be split evenly among {count} ranks"
            )
        given = [tensor.shape[0] // count] * count
    else:
        given = [int(number) for number in splits]
    if len(given) != count or sum(given) != tensor.shape[0] or min(given) < 0:
        raise ValueError(
            f"splits={given}: {count} that add up to {tensor.shape[0]} rows are needed"
        )
    table = _all_numbers(process_set, given, _label("alltoall", name, tensor))
    received = table[:, process_set.ranks.index(dist.get_rank())]
    output = tensor.new_empty((int(received.sum()), *tensor.shape[1:]))
    with internal():
        work = backend.all_to_all_single(
            output, tensor.detach().contiguous(), received.tolist(), given
        )
    return CollectiveHandles([work], lambda: (output, received.to(torch.int32)))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> CollectiveHandles:
    """Start to combine the ranks' tensors, and give each rank some rows.

    Args:
        tensor: its first dimension is split as evenly as possible; the first ranks get more.
        name: the same on all ranks.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies the tensor before.
        postscale_factor: multiplies the result.
    """
    _has_rows("reducescatter", tensor)
    known = operation_of(op, None)
    if known not in (Average, Sum):
        raise refused(f"reducescatter with op={known.name}", "Average and Sum are possible")
    backend, count = process_set.backend, len(process_set.ranks)
    mine = tensor.detach().clone()
    _scale(mine, prescale_factor)
    parts = [part.contiguous() for part in torch.tensor_split(mine, count)]
    rows = len(parts[process_set.ranks.index(dist.get_rank())])
    if backend.channel is None or reductions.sum_reason(parts, dist.ReduceOp.SUM) is not None:
        parts = _equally_long(parts)  # as Gloo needs them
    output = torch.empty_like(parts[process_set.ranks.index(dist.get_rank())])
    with internal():
        works = _meeting(backend, "reducescatter", name)
        works.append(backend.reduce_scatter([output], [parts]))
    factor = _final_scaling(known, postscale_factor, process_set)

    def finish() -> torch.Tensor:
        result = output[:rows]
        _scale(result, *factor)
        return result

    return CollectiveHandles(works, finish)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> CollectiveHandles:
    """Start `reducescatter_async` of each tensor of a list; the result is a list."""
    handles = [
        reducescatter_async(
            tensor,
            None if name is None else f"{name}.{number}",
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for number, tensor in enumerate(tensors)
    ]
    return CollectiveHandles.of_all(handles)


def _meeting(backend: TorchCollectives, what: str, name: str | None) -> list[OutcomeWork]:
    """Let the ranks agree on a name, where the collective itself does not carry it."""
    channel = backend.channel
    if name is None or channel is None:
        return []
    handle = channel.meeting(f"{what} {name}", channel.timeout)
    wait = channel.waiter(handle, "for all ranks")
    outcome = WorkOutcome(wait, lambda: None, lambda: not handle.done())
    return [backend._track(OutcomeWork(outcome, []))]


def _all_numbers(process_set: ProcessSet, mine: Sequence[int], label: str) -> torch.Tensor:
    """Return a row of numbers for each rank, when all ranks have given theirs."""
    backend = process_set.backend
    own = integers(mine)
    table = own.new_empty((len(process_set.ranks), len(own)))
    with internal():
        for work in [*_meeting(backend, "", label), backend.all_gather_single(table, own)]:
            work.wait()
    return table


def _label(what: str, name: str | None, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{what} {name or ''} {dtype} of rows {tuple(tensor.shape[1:])}"


def _equally_long(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fill all parts with rows of zeros up to the longest, which is the first."""
    longest = len(parts[0])
    return [
        torch.cat([part, part.new_zeros((longest - len(part), *part.shape[1:]))]) for part in parts
    ]


def _has_rows(what: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 0:
        raise ValueError(f"{what} of a tensor without dimensions: give it one, by tensor.view(1)")


def _final_scaling(
    op: ReduceOp, postscale_factor: float, process_set: ProcessSet
) -> tuple[float, int]:
    """Return the factor and the divisor that `_scale` applies to the result."""
    return postscale_factor, len(process_set.ranks) if op == Average else 1


def _scale(tensor: torch.Tensor, factor: float, divisor: int = 1) -> None:
    """Multiply and divide in place; integers are cut off towards zero, as Horovod's are.

    A parameter may be given: its gradient is of no concern.
    """
    if factor == 1.0 and divisor == 1:
        return
    with torch.no_grad():
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.mul_(factor / divisor)
        elif factor == 1.0:
            tensor.div_(divisor, rounding_mode="trunc")
        else:
            tensor.copy_((tensor.double() * factor / divisor).to(tensor.dtype))
