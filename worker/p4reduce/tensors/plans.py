# SPDX-License-Identifier: Apache-2.0
"""The collectives as sums: for each, what this rank puts in and what it keeps.

The switch knows one operation, a sum in which blocks of zeros are not sent. The others are that
one with another answer to two questions: who has blocks to put in (`CollectivePlan.source`), and
who keeps which sums (`CollectivePlan.target`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from p4reduce.checks import check_flag, name_of
from p4reduce.tensors.arguments import (
    SupportsArray,
    any_array,
    check_counts,
    check_residual,
    check_root,
    operation_of,
    output_like,
    output_of,
    reducible_array,
    same_memory,
)
from p4reduce.tensors.blocks import (
    Absent,
    Array,
    Blocks,
    BlockSource,
    BlockTarget,
    InPlaceBlocks,
    Pieces,
    RawBlocks,
)
from p4reduce.tensors.noise import Noise, check_seed
from p4reduce.tensors.precision import check_votes, lane_format
from p4reduce.tensors.sparse import SparseArray, is_sparse, to_runs
from p4reduce.tensors.sparse_blocks import SparseSums
from p4reduce.wire.calls import Call, CallPart, Operation
from p4reduce.wire.format import Format

T = TypeVar("T")


@dataclass(frozen=True)
class CollectivePlan(Generic[T]):
    """A stream of blocks to run, and its result.

    Attributes:
        lane_format: of the blocks of source and target.
        seed: for rounding floats to narrow lanes.
        counted: whether it is one of the communicator's collectives in statistics.
    """

    call: Call
    source: BlockSource
    target: BlockTarget
    result: Callable[[], T]
    lane_format: Format = Format.INT32
    seed: int | None = None
    counted: bool = True

    def with_priority(self, priority: int) -> CollectivePlan[T]:
        """Return the same plan for the slots of another class."""
        if priority == self.call.priority:
            return self
        return replace(self, call=replace(self.call, priority=priority))

    def uncounted(self) -> CollectivePlan[T]:
        """Return the same plan as an internal one, which statistics do not count."""
        return replace(self, counted=False)

    def part(self, number: int, of: int, first: int, stop: int) -> CollectivePlan[T]:
        """Return the plan for consecutive blocks, as a collective of its own.

        All parts together give the same bits as the whole.

        Args:
            number: of the part, from 0.
            of: how many parts there are.
            first: which blocks.
            stop: as `first`.
        """
        return replace(
            self,
            call=replace(self.call, part=CallPart(number, of, first)),
            source=self.source.section(first, stop),
            target=self.target.section(first, stop),
            counted=self.counted and number == 0,
        )

    def noise(self, rank: int, number: int) -> Noise | None:
        """Return the random numbers for rounding; None if lanes are not rounded at random.

        Args:
            rank: own.
            number: of the call within the communicator.
        """
        if self.source.dtype.kind != "f" or self.lane_format is Format.INT32:
            return None
        noise = Noise(self.seed, rank, number)
        part = self.call.part
        return noise if part is None else noise.since(part.first_block, self.lane_format.lanes)


def allreduce(
    array: Any,  # SupportsArray or SparseArray
    op: Operation | str,
    name: str | None,
    out: Array | None,
    precision: str | None = None,
    seed: int | None = None,
    residual: Array | None = None,
    *,
    world_size: int,
) -> CollectivePlan[Any]:
    """All ranks contribute all blocks, and keep all sums."""
    if is_sparse(array):
        dense = out is not None
        if residual is not None:
            raise ValueError("residual: sparse arrays have none; give a dense array")
        return allreduce_sparse(
            array, op, name, precision, seed, dense=dense, out=out, world_size=world_size
        )
    source, op = reducible_array(array, op)
    result = output_like(source, out)
    lanes = lane_format(source.dtype, precision, world_size)
    check_votes(source, lanes)
    if residual is not None:
        check_residual(residual, source, result, lanes)
        if not same_memory(result, source):
            np.copyto(result, source)
        source, residual = result, residual.reshape(-1)
    in_place = result is source and residual is None
    given = Blocks(np.ascontiguousarray(source).reshape(-1), lanes.lanes, residual=residual)
    return CollectivePlan(
        _allreduce_call(source.dtype, source.shape, op, name_of(name)),
        given,
        given if in_place else Blocks(result.reshape(-1), lanes.lanes),
        lambda: result,
        lanes,
        check_seed(seed),
    )


def allreduce_sparse(
    array: SparseArray,
    op: Operation | str,
    name: str | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    dense: bool,
    out: Array | None = None,
    world_size: int,
) -> CollectivePlan[Any]:
    """As `allreduce`, for another storage of an array. Other ranks may have it dense."""
    check_flag("dense", dense)
    runs, shape, give_back = to_runs(array)
    dtype = runs.values.dtype
    op = operation_of(op, dtype)
    call = _allreduce_call(dtype, tuple(map(int, shape)), op, name_of(name))
    lanes = lane_format(dtype, precision, world_size)
    check_votes(runs.values, lanes)
    source = runs.source(lanes.lanes)
    seed = check_seed(seed)
    if dense:
        result = output_of(shape, dtype, out)
        target = Blocks(result.reshape(-1), lanes.lanes)
        return CollectivePlan(call, source, target, lambda: result, lanes, seed)
    sums = SparseSums(dtype, runs.size, lanes.lanes)
    return CollectivePlan(
        call, source, sums, lambda: give_back(*sums.rows(runs.width)), lanes, seed
    )


def broadcast(
    array: SupportsArray,
    root: int,
    name: str | None,
    out: Array | None,
    *,
    rank: int,
    world_size: int,
) -> CollectivePlan[Array]:
    """The root has all blocks, and the others keep them."""
    root = check_root(root, world_size)
    mine = any_array(array)
    result = output_like(mine, out)
    call = Call(
        "broadcast",
        describe_dtype(mine.dtype),
        mine.size,
        root=root,
        name=name_of(name),
        shapes=(mine.shape,),
    )
    received = RawBlocks(result)
    nothing = Absent(received.dtype, len(received))
    if rank != root:
        return CollectivePlan(call, nothing, received, lambda: result)
    if result is not mine:
        np.copyto(result, mine)
    return CollectivePlan(call, RawBlocks(np.ascontiguousarray(mine)), nothing, lambda: result)


def reduce(
    array: SupportsArray,
    op: Operation | str,
    root: int,
    name: str | None,
    out: Array | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    rank: int,
    world_size: int,
) -> CollectivePlan[Array | None]:
    """All ranks contribute all blocks, and the root keeps the sums."""
    root = check_root(root, world_size)
    mine, op = reducible_array(array, op)
    call = Call(
        "reduce", dtype_name(mine.dtype), mine.size, op, root, name_of(name), shapes=(mine.shape,)
    )
    lanes = lane_format(mine.dtype, precision, world_size)
    check_votes(mine, lanes)
    seed = check_seed(seed)
    source = Blocks(np.ascontiguousarray(mine).reshape(-1), lanes.lanes)
    if rank != root:
        return CollectivePlan(
            call, source, Absent(source.dtype, len(source)), lambda: None, lanes, seed
        )
    result = output_like(mine, out)
    target = Blocks(result.reshape(-1), lanes.lanes)
    return CollectivePlan(call, source, target, lambda: result, lanes, seed)


def reduce_scatter(
    array: SupportsArray,
    op: Operation | str,
    counts: Sequence[int] | None,
    name: str | None,
    out: Array | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    rank: int,
    world_size: int,
) -> CollectivePlan[Array]:
    """All ranks contribute all blocks, and each keeps the sums of its own part."""
    mine, op = reducible_array(array, op)
    if mine.ndim == 0:
        raise ValueError("a number without dimensions cannot be scattered")
    mine = np.ascontiguousarray(mine)
    rows = (
        _equal_counts(len(mine), world_size) if counts is None else check_counts(counts, world_size)
    )
    if sum(rows) != len(mine):
        raise ValueError(
            f"counts={list(rows)} are {sum(rows)} rows together, the array has {len(mine)}"
        )
    result = output_of((rows[rank], *mine.shape[1:]), mine.dtype, out)
    if np.may_share_memory(mine, result):
        raise ValueError("out overlaps the array")
    lanes = lane_format(mine.dtype, precision, world_size)
    check_votes(mine, lanes)
    parts = np.split(mine, np.cumsum(rows)[:-1])
    sources = [Blocks(part.reshape(-1), lanes.lanes) for part in parts]
    targets: list[InPlaceBlocks] = [Absent(mine.dtype, len(source)) for source in sources]
    targets[rank] = Blocks(result.reshape(-1), lanes.lanes)
    shape = _shape_of_rows(mine)
    call = Call(
        "reduce_scatter",
        dtype_name(mine.dtype),
        mine.size,
        op,
        name=name_of(name),
        details=f"rows of {shape}",
        pieces=tuple((f"part of rank {n}", part.size) for n, part in enumerate(parts)),
    )
    seed = check_seed(seed)
    return CollectivePlan(call, Pieces(sources), Pieces(targets), lambda: result, lanes, seed)


def allgather_counts(
    array: SupportsArray, name: str | None, *, rank: int, world_size: int
) -> CollectivePlan[tuple[int, ...]]:
    """Each rank contributes its number of rows: 8 bytes in a shared block."""
    mine = np.atleast_1d(any_array(array))
    mine_of_all = np.zeros(world_size, np.int64)
    mine_of_all[rank] = len(mine)
    counts = np.zeros(world_size, np.int64)
    call = Call(
        "allgather",
        describe_dtype(mine.dtype),
        0,
        name=name_of(name),
        details=f"rows of {_shape_of_rows(mine)}, counts asked for",
    )
    return CollectivePlan(
        call, RawBlocks(mine_of_all), RawBlocks(counts), lambda: tuple(counts.tolist())
    )


def allgather(
    array: SupportsArray,
    counts: Sequence[int],
    name: str | None,
    out: Array | None,
    *,
    rank: int,
    world_size: int,
) -> CollectivePlan[Array]:
    """Each rank contributes the blocks of its own part, and keeps the others'."""
    mine = np.atleast_1d(any_array(array))
    rows = check_counts(counts, world_size)
    if rows[rank] != len(mine):
        raise ValueError(f"counts={list(rows)}, but the array of rank {rank} has {len(mine)} rows")
    result = output_of((sum(rows), *mine.shape[1:]), mine.dtype, out)
    parts = np.split(result, np.cumsum(rows)[:-1])
    if not same_memory(mine, parts[rank]):
        if np.may_share_memory(mine, result):
            raise ValueError("out overlaps the array, which is not its own part of it")
        parts[rank][...] = mine
    targets: list[InPlaceBlocks] = [RawBlocks(part) for part in parts]
    sources: list[InPlaceBlocks] = [Absent(target.dtype, len(target)) for target in targets]
    # What it sends is its part of the result, from which it takes nothing that comes back.
    sources[rank], targets[rank] = targets[rank], sources[rank]
    call = Call(
        "allgather",
        describe_dtype(mine.dtype),
        result.size,
        name=name_of(name),
        details=f"rows of {_shape_of_rows(mine)}, counts {list(rows)}",
    )
    return CollectivePlan(call, Pieces(sources), Pieces(targets), lambda: result)


def barrier() -> CollectivePlan[None]:
    """No rank contributes a block. The opening round is all there is."""
    nothing = Absent(np.dtype(np.int32), 0)
    return CollectivePlan(Call("barrier", "nothing", 0), nothing, nothing, lambda: None)


@functools.lru_cache(maxsize=1024)
def _allreduce_call(dtype: np.dtype[Any], shape: tuple[int, ...], op: Operation, name: str) -> Call:
    """Return what the ranks agree on. A program makes the same calls again and again."""
    return Call("allreduce", dtype_name(dtype), math.prod(shape), op, name=name, shapes=(shape,))


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return numpy's name of a dtype. numpy itself computes it each time, in Python."""
    return str(dtype.name)


def describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype as text, with its fields if it has some."""
    return str(dtype.descr) if dtype.names else str(dtype)


def _shape_of_rows(array: Array) -> tuple[int, ...]:
    return array.shape[1:]


def _equal_counts(rows: int, world_size: int) -> tuple[int, ...]:
    """Split rows evenly; the first ranks have one more where they do not divide."""
    share, more = divmod(rows, world_size)
    return tuple(share + (rank < more) for rank in range(world_size))
