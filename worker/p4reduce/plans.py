# SPDX-License-Identifier: Apache-2.0
"""The collectives as sums: for each, what this rank puts in and what it keeps.

The switch knows one operation, a sum in which blocks of zeros are not sent. The others are that
one with another answer to two questions: who has blocks to put in (`Plan.source`), and who keeps
which sums (`Plan.target`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from p4reduce.arguments import (
    SupportsArray,
    any_array,
    check_root,
    output_like,
    reducible_array,
)
from p4reduce.blocks import Absent, Array, Blocks, RawBlocks, Source, Target
from p4reduce.calls import Call, Operation
from p4reduce.wire import Format

T = TypeVar("T")


@dataclass(frozen=True)
class Plan(Generic[T]):
    """One stream of blocks to be run, and what the caller gets then."""

    call: Call
    source: Source
    target: Target
    result: Callable[[], T]


def allreduce(
    array: SupportsArray, op: Operation, name: str | None, out: Array | None
) -> Plan[Array]:
    """Everybody has all blocks, and keeps all."""
    source = reducible_array(array, op)
    result = output_like(source, out)
    lanes = Format.INT32.lanes
    return Plan(
        Call("allreduce", source.dtype.name, source.size, op, name=name or ""),
        Blocks(np.ascontiguousarray(source).reshape(-1), lanes),
        Blocks(result.reshape(-1), lanes),
        lambda: result,
    )


def broadcast(
    array: SupportsArray,
    root: int,
    name: str | None,
    out: Array | None,
    *,
    rank: int,
    world_size: int,
) -> Plan[Array]:
    """The root has all blocks, and the others keep them."""
    root = check_root(root, world_size)
    mine = any_array(array)
    result = output_like(mine, out)
    call = Call("broadcast", describe_dtype(mine.dtype), mine.size, root=root, name=name or "")
    received = RawBlocks(result)
    nothing = Absent(received.dtype, len(received))
    if rank != root:
        return Plan(call, nothing, received, lambda: result)
    if result is not mine:
        np.copyto(result, mine)
    return Plan(call, RawBlocks(np.ascontiguousarray(mine)), nothing, lambda: result)


def barrier() -> Plan[None]:
    """Nobody has anything: the round that opens the stream is all there is."""
    nothing = Absent(np.dtype(np.int32), 0)
    return Plan(Call("barrier", "nothing", 0), nothing, nothing, lambda: None)


def describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype as text, with its fields if it has some."""
    return str(dtype.descr) if dtype.names else str(dtype)
