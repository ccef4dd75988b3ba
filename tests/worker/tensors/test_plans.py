# SPDX-License-Identifier: Apache-2.0
"""All collectives on the real P4 program in process: right with losses, and when the switch is
lost under them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from one_process import OneProcess
from p4reduce import SparseBlocks, SparseRows
from p4reduce.handle import Handle
from p4reduce.tensors import plans
from p4reduce.tensors.fusion import ArrayGroup
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import Format

Array = npt.NDArray[Any]

WORLD, SLOTS = 3, 4
BLOCK = 256
USED = 0x55  # what callers fill their arrays with afterwards


class Program:
    """The same calls on all ranks, with random input, and what is right."""

    def __init__(self, rng: np.random.Generator) -> None:
        size = int(rng.integers(1, 9 * BLOCK))
        density = rng.choice([0.0, 0.2, 1.0])
        sent = rng.random((WORLD, size)) < density
        self.numbers = (rng.integers(-999, 999, (WORLD, size)) * sent).astype(np.int32)
        self.bytes = rng.integers(0, 256, (WORLD, size), np.uint8)
        self.root = int(rng.integers(WORLD))
        self.lengths = rng.integers(0, size + 1, WORLD).tolist()
        self.rows = [rng.integers(0, 60, int(rng.integers(0, 20))) for _ in range(WORLD)]
        self.blocks = [np.flatnonzero(rng.random(9) < 0.4) for _ in range(WORLD)]

    def start(self, rank: int) -> tuple[list[list[CollectivePlan[Any]]], list[Any], list[Array]]:
        """One rank's plans by call, what gives the results, and the arrays that are in use."""
        numbers, raw = self.numbers[rank].copy(), self.bytes[rank].copy()
        part = raw[: self.lengths[rank]].copy()
        rows = SparseRows(self.rows[rank], np.ones((len(self.rows[rank]), 70), np.int32), (60, 70))
        values = np.full((len(self.blocks[rank]), BLOCK), rank + 1, np.int32)
        blocks = SparseBlocks(self.blocks[rank], values, 9 * BLOCK)
        here: dict[str, Any] = {"rank": rank, "world_size": WORLD}
        one = (None, None)  # neither precision nor seed
        grouped, results = ArrayGroup(Operation.SUM, WORLD, 5000, *one).plan(
            [numbers, numbers[:1], numbers[:70], numbers], None, None
        )
        calls: list[list[CollectivePlan[Any]]] = [
            [plans.broadcast(raw, self.root, None, raw, **here)],
            [plans.reduce(numbers, Operation.SUM, self.root, None, None, *one, **here)],
            [plans.allgather(part, self.lengths, None, None, **here)],
            [plans.barrier()],
            [plans.reduce_scatter(numbers, Operation.SUM, None, None, None, *one, **here)],
            [
                plans.allreduce_sparse(
                    rows, Operation.SUM, None, *one, dense=False, world_size=WORLD
                )
            ],
            grouped,
            [
                plans.allreduce_sparse(
                    blocks, Operation.SUM, None, *one, dense=False, world_size=WORLD
                )
            ],
            [plans.allgather_counts(part, None, **here)],
        ]
        finish = [call[0].result if call is not grouped else results for call in calls]
        return calls, finish, [numbers, raw, part, rows.values, values]

    def check(self, rank: int, results: list[Any]) -> None:
        total = self.numbers.sum(axis=0, dtype=np.int32)
        raw, reduced, gathered, _, mine, rows, grouped, blocks, counts = results
        assert np.array_equal(raw, self.bytes[self.root])
        assert reduced is None if rank != self.root else np.array_equal(reduced, total)
        parts = [self.bytes[n, : self.lengths[n]] for n in range(WORLD)]
        assert np.array_equal(gathered, np.concatenate(parts))
        assert np.array_equal(mine, np.array_split(total, WORLD)[rank])
        times = np.bincount(np.concatenate(self.rows), minlength=60)
        assert np.array_equal(rows.indices, np.flatnonzero(times))
        assert np.array_equal(rows.values, np.repeat(times[times > 0, None], 70, axis=1))
        for result, right in zip(grouped, (total, total[:1], total[:70], total), strict=True):
            assert np.array_equal(result, right)
        there = np.array([np.isin(np.arange(9), some) for some in self.blocks])
        values = (there * np.arange(1, WORLD + 1)[:, None]).sum(axis=0)
        assert np.array_equal(blocks.to_dense(), np.repeat(values, BLOCK))
        assert list(counts) == self.lengths


class Rank:
    """A rank that starts its calls when told to, takes the results and uses its arrays again."""

    def __init__(self, program: Program, rank: int) -> None:
        calls, finish, self._arrays = program.start(rank)
        self.results: list[Any] = []
        self._waiting: list[Collective] = []
        self._handles: list[Handle[Any]] = []
        sequence = 0
        for call, result in zip(calls, finish, strict=True):
            streams = []
            for plan in call:
                lanes = plan.lane_format
                streams.append(
                    Collective(
                        plan.call,
                        plan.source,
                        plan.target,
                        sequence=sequence,
                        slots=SLOTS,
                        timeout=1e6,
                        lane_format=lanes,
                    )
                )
                sequence += 1
            self._waiting += streams
            self._handles.append(Handle(streams, result))

    def next(self) -> Collective | None:
        """The next one to be submitted."""
        if not self._waiting:
            return None
        return self._waiting.pop(0)

    def over(self) -> bool:
        """Whether all is over; the caller's arrays hold something else from then on."""
        if self._waiting or not all(handle.done() for handle in self._handles):
            return False
        if not self.results:
            for handle in self._handles:
                result = handle.wait(0)
                self.results.append(result.copy() if isinstance(result, np.ndarray) else result)
            for array in self._arrays:
                array[...] = USED
        return True


@pytest.mark.parametrize("losses", [0, 2])
def test_all_are_right_even_if_the_switch_is_lost(rng: np.random.Generator, losses: int) -> None:
    program = Program(rng)
    ranks = [Rank(program, rank) for rank in range(WORLD)]
    fabric = OneProcess(WORLD, SLOTS, rng, loss=0.05)
    lost_at = set(rng.choice(600, losses, replace=False).tolist())
    for step in range(100_000):
        for rank, machine in zip(ranks, fabric.machines, strict=True):
            if rng.random() < 0.05 and (stream := rank.next()):
                machine.submit(stream)
        over = [rank.over() for rank in ranks]
        if all(over):
            break
        if not fabric.step():
            fabric.tick()
        if step in lost_at:
            fabric.continue_elsewhere(range(WORLD))
    for number, rank in enumerate(ranks):
        program.check(number, rank.results)


# -- What ranks compare, and messages ------------------------------------------------------------


def test_tags_differ_where_calls_do() -> None:
    call = Call("reduce", "float32", 10, Operation.SUM, 0, "name", "details", (("a", 10),))
    others = [
        Call("allreduce", "float32", 10, Operation.SUM, 0, "name", "details", (("a", 10),)),
        Call("reduce", "float64", 10, Operation.SUM, 0, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 11, Operation.SUM, 0, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 10, Operation.MEAN, 0, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 10, None, 0, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 10, Operation.SUM, 1, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 10, Operation.SUM, None, "name", "details", (("a", 10),)),
        Call("reduce", "float32", 10, Operation.SUM, 0, "named", "etails", (("a", 10),)),
        Call("reduce", "float32", 10, Operation.SUM, 0, "name", "details", (("b", 10),)),
        Call("reduce", "float32", 10, Operation.SUM, 0, "name", "details", (("a", 4), ("b", 6))),
    ]
    tags = {one.fingerprint(3, Format.INT32) for one in (call, *others)}
    tags |= {call.fingerprint(4, Format.INT32), call.fingerprint(3, Format.INT16)}
    assert len(tags) == len(others) + 3


ONES = np.ones((6, 500), np.float32)
HERE: dict[str, Any] = {"rank": 0, "world_size": 2}


def broadcast(array: Array, root: int = 0) -> CollectivePlan[Any]:
    return plans.broadcast(array, root, None, None, **HERE)


def reduce_scatter(array: Array, counts: list[int] | None = None) -> CollectivePlan[Any]:
    return plans.reduce_scatter(array, Operation.SUM, counts, None, None, **HERE)


def allgather(array: Array, counts: list[int]) -> CollectivePlan[Any]:
    return plans.allgather(array, counts, None, None, **HERE)


def grouped(
    arrays: list[Array], names: str = "abc", threshold: int = 1 << 20
) -> CollectivePlan[Any]:
    group = ArrayGroup(Operation.SUM, 2, threshold)
    return group.plan(arrays, list(names[: len(arrays)]), None)[0][0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(broadcast(ONES), broadcast(ONES, 1), id="root"),
        pytest.param(broadcast(ONES), broadcast(ONES.view(np.int32)), id="dtype"),
        pytest.param(broadcast(ONES), broadcast(ONES.view("V4")), id="dtype without a name"),
        pytest.param(broadcast(ONES), broadcast(ONES[:5]), id="size"),
        pytest.param(broadcast(ONES), broadcast(ONES.T), id="shape"),
        pytest.param(grouped([ONES, ONES]), grouped([ONES, ONES.T]), id="shape of one of many"),
        pytest.param(reduce_scatter(ONES), reduce_scatter(ONES.reshape(500, 6)), id="rows"),
        pytest.param(reduce_scatter(ONES), reduce_scatter(ONES, [2, 4]), id="counts"),
        pytest.param(
            plans.allgather_counts(ONES, None, **HERE),
            plans.allgather_counts(ONES.T, None, **HERE),
            id="shape of rows",
        ),
        pytest.param(allgather(ONES, [6, 5]), allgather(ONES, [6, 4]), id="lengths"),
        pytest.param(grouped([ONES, ONES]), grouped([ONES, ONES], "acb"), id="names"),
        pytest.param(grouped([ONES, ONES]), grouped([ONES, ONES[1:]]), id="sizes"),
        pytest.param(grouped([ONES[0], ONES]), grouped([ONES, ONES[0]]), id="order of sizes"),
        pytest.param(grouped([ONES, ONES]), grouped([ONES, ONES.view(np.int32)]), id="dtypes"),
        pytest.param(grouped([ONES]), grouped([ONES, ONES]), id="one more"),
        pytest.param(grouped([ONES]), grouped([]), id="none"),
        pytest.param(grouped([ONES, ONES]), grouped([ONES, ONES], threshold=0), id="threshold"),
    ],
)
def test_ranks_that_call_different_things_find_out(
    one: CollectivePlan[Any], other: CollectivePlan[Any]
) -> None:
    assert one.call.fingerprint(0, Format.INT32) != other.call.fingerprint(0, Format.INT32)


@pytest.mark.parametrize(
    ("one", "other"),
    [(broadcast(ONES), broadcast(ONES.T)), (grouped([ONES, ONES]), grouped([ONES.T, ONES]))],
)
def test_ranks_that_let_shapes_differ_agree(
    one: CollectivePlan[Any], other: CollectivePlan[Any]
) -> None:
    calls = one.call.of_any_shape(), other.call.of_any_shape()
    assert len({call.fingerprint(0, Format.INT32) for call in calls}) == 1
    assert len({call.describe(0, fully=True) for call in calls}) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("barrier", "nothing", 0), "barrier 7"),
        (
            Call("allreduce", "float32", 1000, Operation.MEAN, name="grad"),
            "allreduce 7 ('grad', MEAN of 1,000 float32)",
        ),
        (Call("broadcast", "bool", 12, root=3), "broadcast 7 (12 bool, root 3)"),
        (
            Call("grouped_allreduce", "int32", 30, Operation.SUM, pieces=(("a", 10), ("b", 20))),
            "grouped_allreduce 7 ('a' to 'b', SUM of 30 int32)",
        ),
    ],
)
def test_calls_describe_themselves(call: Call, text: str) -> None:
    assert call.describe(7) == text


def test_blocks_are_located_in_pieces() -> None:
    call = Call("grouped_allreduce", "int32", 857, pieces=(("a", 300), ("none", 0), ("b", 557)))
    assert [call.locate(block, BLOCK) for block in range(5)] == [
        "elements 0 to 255 of 'a'",
        "elements 256 to 299 of 'a'",
        "elements 0 to 255 of 'b'",
        "elements 256 to 511 of 'b'",
        "elements 512 to 556 of 'b'",
    ]
    assert Call("allreduce", "int32", 300).locate(1, BLOCK) == "elements 256 to 299"


MEMORY = np.zeros(40, np.float32)
A, B, C, D = (MEMORY[first : first + 10] for first in (0, 10, 20, 30))


@pytest.mark.parametrize(
    ("arrays", "outs"),
    [
        ([A, B], [B, A]),
        ([A, B], [C, C]),
        ([A, B], [MEMORY[15:25], D]),
        ([A, B[::-1]], [MEMORY[11:21], D]),
        ([MEMORY[20:40:2], A], [B, D]),
    ],
)
def test_an_out_in_another_arrays_memory_is_refused(arrays: list[Array], outs: list[Array]) -> None:
    with pytest.raises(ValueError, match=r"'[ab]' or '[ab]' overlaps"):
        ArrayGroup(Operation.SUM, 2).plan(arrays, ["a", "b"], outs)


def test_outs_in_place_or_apart_are_taken() -> None:
    group, empty = ArrayGroup(Operation.SUM, 2), np.zeros(0, np.float32)
    group.plan([A, B, C], None, [A, B, C])
    group.plan([A, A, B, empty], None, [C, D, B, empty])
    group.plan([A, A], None, [None, None])
