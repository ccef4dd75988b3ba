# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse arrays: ranks agree on the union of their indices, then sum it packed.

Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019.
There streams of (index, value) are merged on the way. A switch adds lanes and merges nothing, so
here three collectives follow each other:

1. Each rank gives its number of elements, or that its arguments are wrong: 16 bytes per rank.
2. Each rank gives its indices, and all take the union. The indices go as marks if all fit into one
   frame: a rank's code takes a frame as well. Otherwise they go as Elias–Fano codes.
3. The values of the union are summed as a dense array, without gaps.

The numbers of step 1 also decide whether steps 2 and 3 take more bytes than the sum
by blocks. All ranks have the same figures, so they decide alike.

Torch's rows go without step 1. Codes cannot be read then, so the shape alone decides between marks
and the sum by blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.checks import check_flag, name_of
from p4reduce.errors import ConfigurationError, ValueRangeError
from p4reduce.tensors import index_codes, plans
from p4reduce.tensors.arguments import operation_of
from p4reduce.tensors.blocks import Array, Indices, RawBlocks
from p4reduce.tensors.noise import check_seed
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.sparse import SparseArray, is_vector, to_runs
from p4reduce.tensors.sparse_blocks import Runs
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import (
    EMPTY_FRAME_BYTES,
    PAYLOAD_BYTES,
    PAYLOAD_FRAME_BYTES,
    Format,
)

Counts = npt.NDArray[np.int64]

_MARK_BYTES = 64 * PAYLOAD_BYTES  # at most, without step 1
_WIDE = 4 * Format.INT32.lanes  # elements: units from here on fill their blocks
_STRIPES = 32  # slots of a job where nothing else is said; each is opened once per collective
_WRONG = -1  # for a count: the rank's arguments are wrong
_TEXT = 256  # bytes of a rank's own words that others see
_LARGEST = 2.0**128  # float64 magnitudes stay below it


@dataclass(frozen=True)
class UnionSum:
    """What a rank has checked of its call.

    Attributes:
        runs: its part, without units that are zero.
        shape: of the whole array.
        lanes: the format of the values on the wire.
        operation: sum or mean.
        give_back: makes the sum of the caller's kind, of units and values without zeros.
    """

    runs: Runs
    shape: tuple[int, ...]
    lanes: Format
    operation: Operation
    give_back: Callable[[Indices, Array], Any]

    def facts(self) -> tuple[int, int]:
        """Return the numbers that other ranks need: units, and blocks that they touch."""
        return len(self.runs.indices), self.runs.touched(self.lanes.lanes)


def agrees(array: SparseArray, agree: bool | None) -> bool:
    """Whether ranks agree on the union first: as requested, else for elements and vectors."""
    if agree is None:
        return is_vector(array)
    check_flag("agree", agree)
    return agree


def agrees_by_shape(shape: tuple[int, ...], world_size: int) -> bool:
    """Whether ranks agree on the union of rows without step 1."""
    rows, width = shape[0], math.prod(shape[1:])
    return 0 < width < _WIDE and 0 < index_codes.mark_bytes(rows, world_size) <= _MARK_BYTES


def sum_of(
    array: SparseArray,
    op: Operation | str,
    name: str | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    dense: bool,
    world_size: int,
) -> UnionSum:
    """Check and convert a caller's array.

    Raises:
        TypeError, ValueError, ValueRangeError: an argument is wrong, or a number is not finite.
    """
    check_flag("dense", dense)
    check_seed(seed)
    name_of(name)
    runs, shape, give_back = to_runs(array)
    operation = operation_of(op, runs.values.dtype)
    lanes = lane_format(runs.values.dtype, precision, world_size)
    some = runs.values.any(axis=1)
    if not some.all():
        runs = replace(runs, indices=runs.indices[some], values=runs.values[some])
    if runs.values.dtype.kind == "f":
        _check_finite(runs.indices, runs.values)
    return UnionSum(runs, shape, lanes, operation, give_back)


def _check_finite(units: Indices, values: Array) -> None:
    fine = np.isfinite(values).all(axis=1)
    if not fine.all():
        at = int(np.argmin(fine))
        number = values[at][~np.isfinite(values[at])][0]
        raise ValueError(
            f"the value at index {units[at]} is {number}: finite numbers are needed where ranks "
            "agree on the union; agree=False sums by blocks, and passes NaN on"
        )
    if values.dtype == np.float64:
        wide = (np.abs(values) >= _LARGEST).any(axis=1)
        if wide.any():
            raise ValueRangeError(
                f"the value at index {units[int(np.argmax(wide))]} has a magnitude of 2^128 or "
                "more: block exponents have float32's range"
            )


def telling(
    asked: UnionSum | None, name: str | None, *, rank: int, world_size: int
) -> CollectivePlan[Counts]:
    """Return the plan by which each rank tells its facts; None if its arguments are wrong.

    Returns:
        A plan whose result has shape (ranks, 2): units and blocks, or -1 in both.
    """
    mine = np.zeros((world_size, 2), np.int64)
    mine[rank] = (_WRONG, _WRONG) if asked is None else asked.facts()
    return _gathering(mine, _call(name, "counts asked for"))


def wrong_ranks(facts: Counts) -> tuple[int, ...]:
    """Return the ranks with wrong arguments."""
    return tuple(np.flatnonzero(facts[:, 0] == _WRONG).tolist())


def complaint(
    trouble: str, name: str | None, *, rank: int, world_size: int
) -> CollectivePlan[npt.NDArray[np.uint8]]:
    """Return the plan by which ranks with wrong arguments say how; others send ""."""
    mine = np.zeros((world_size, _TEXT), np.uint8)
    cut = trouble.encode()[:_TEXT]
    mine[rank, : len(cut)] = np.frombuffer(cut, np.uint8)
    return _gathering(mine, _call(name, "why arguments are wrong"))


def refusal(ranks: tuple[int, ...], texts: npt.NDArray[np.uint8]) -> ConfigurationError:
    """Return the error of ranks whose own arguments are right."""
    first = bytes(texts[ranks[0]]).rstrip(b"\0").decode(errors="ignore")
    more = f" (and {len(ranks) - 1} more have wrong arguments)" if len(ranks) > 1 else ""
    return ConfigurationError(f"nothing was summed: rank {ranks[0]} gave {first}{more}")


def is_dense(asked: UnionSum, facts: Counts) -> bool:
    """Whether the sum by blocks needs fewer bytes, up and down, on the rank with most.

    Indices are taken to be independent of other ranks' ones, which overestimates the union if they
    are not. They are taken to go as codes; marks, where they go, take no more.
    """
    lanes, width, size = asked.lanes.lanes, asked.runs.width, asked.runs.count
    counts, blocks = facts[:, 0].tolist(), facts[:, 1].tolist()
    coded = [index_codes.code_bytes(size, count) for count in counts]
    by_blocks = _cost(-(-size * width // lanes), blocks)
    union = expected_union(size, counts)
    packed = math.ceil(union * width / lanes)
    by_union = _cost(
        -(-sum(coded) // PAYLOAD_BYTES), [-(-one // PAYLOAD_BYTES) for one in coded]
    ) + _cost(packed, [min(packed, count) for count in counts])
    return by_blocks <= by_union


def expected_union(size: int, counts: Sequence[int]) -> float:
    """Return the expected size of the union, N(1 - ∏(1 - k/N)), for independent choices."""
    return size * (1 - math.prod(1 - count / size for count in counts)) if size else 0.0


def _cost(blocks: int, own: Sequence[int]) -> float:
    """Return the bytes of one collective for the rank that has most blocks.

    Args:
        blocks: of the array.
        own: how many of them each rank has.
    """
    if not blocks:
        return 2 * EMPTY_FRAME_BYTES
    union = min(expected_union(blocks, [min(count, blocks) for count in own]), sum(own))
    most = min(max(own), union)
    return (
        2 * EMPTY_FRAME_BYTES * min(blocks, _STRIPES)
        + (union + most) * PAYLOAD_FRAME_BYTES
        + (union - most) * EMPTY_FRAME_BYTES
    )


def agreement(
    runs: Runs, *, rank: int, world_size: int, counts: Sequence[int] | None = None
) -> tuple[Array, Callable[[Array], Indices]]:
    """Return what a rank gives to agree on the union, and what reads it from all ranks' sum.

    Args:
        runs: of this rank.
        rank: own.
        world_size: ranks.
        counts: of each rank's units; None: without step 1, if `agrees_by_shape`.

    Returns:
        Integers in one dimension, and a function from their sum, of the same dtype, to the union's
        units, ascending.
    """
    size = runs.count
    if counts is None or index_codes.mark_bytes(size, world_size) <= PAYLOAD_BYTES:
        marks = index_codes.marks_of(runs.indices, size, world_size)
        return marks, lambda total: index_codes.marked(total, world_size)
    ends = [0, *accumulate(index_codes.code_bytes(size, count) for count in counts)]
    places = [slice(*both) for both in pairwise(ends)]
    codes = np.zeros(ends[-1], np.uint8)  # with zeros at the places of other ranks' codes
    codes[places[rank]] = index_codes.encode(runs.indices, size)

    def union(total: Array) -> Indices:
        parts = zip(places, counts, strict=True)
        every = [index_codes.decode(total[place], size, count) for place, count in parts]
        if 16 * sum(counts) < size:
            some = np.concatenate(every)
            some.sort(kind="stable")  # merges what is in order already; np.unique hashes it
            return some[np.flatnonzero(np.diff(some, prepend=-1))]
        marks = np.zeros(size, np.bool_)
        for indices in every:
            marks[indices] = True
        return np.flatnonzero(marks)

    return codes, union


def agreeing(
    asked: UnionSum, facts: Counts, name: str | None, *, rank: int, world_size: int
) -> CollectivePlan[Indices]:
    """Return the plan by which all ranks give their indices and get the union, ascending."""
    mine, union = agreement(
        asked.runs, rank=rank, world_size=world_size, counts=facts[:, 0].tolist()
    )
    gathering = _gathering(mine, _call(name, "indices", asked))
    return replace(gathering, result=lambda: union(gathering.result()))


def summing(
    asked: UnionSum,
    union: Indices,
    name: str | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    dense: bool,
    world_size: int,
) -> CollectivePlan[Any]:
    """Return the plan that sums the values of the union."""
    packed = asked.runs.packed(union)
    plan = plans.allreduce(
        packed, asked.operation, name, packed, precision, seed, world_size=world_size
    )
    call = replace(_call(name, "packed", asked), pieces=(("the union", packed.size),), shapes=())

    def result() -> Any:
        if dense:
            return replace(asked.runs, indices=union, values=packed).dense().reshape(asked.shape)
        some = packed.any(axis=1)
        return asked.give_back(union[some], packed[some])

    return replace(plan, call=call, result=result)


def by_blocks(
    array: SparseArray,
    asked: UnionSum,
    name: str | None,
    precision: str | None = None,
    seed: int | None = None,
    *,
    dense: bool,
    world_size: int,
) -> CollectivePlan[Any]:
    """Return the sum by blocks, which all ranks found to be cheaper."""
    plan = plans.allreduce_sparse(
        array, asked.operation, name, precision, seed, dense=dense, world_size=world_size
    )
    return replace(plan, call=_call(name, "by blocks", asked))


def _call(name: str | None, details: str, asked: UnionSum | None = None) -> Call:
    if asked is None:
        return Call("allreduce_sparse", "elements", 0, name=_name(name), details=details)
    return Call(
        "allreduce_sparse",
        asked.runs.values.dtype.name,
        math.prod(asked.shape),
        operation=asked.operation,
        name=_name(name),
        details=f"{details}, units of {asked.runs.width}",
        shapes=(asked.shape,),
    )


def _name(name: str | None) -> str:
    return name if isinstance(name, str) else ""  # anything else is refused already


def _gathering(mine: Array, call: Call) -> CollectivePlan[Any]:
    """Return the plan of a sum of integers, which statistics do not count."""
    every = np.zeros_like(mine)
    return CollectivePlan(call, RawBlocks(mine), RawBlocks(every), lambda: every, counted=False)
