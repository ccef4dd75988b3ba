# SPDX-License-Identifier: Apache-2.0
"""What ranks decide before they sum sparse elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce import SparseBlocks, SparseElements, SparseRows
from p4reduce.tensors.sparse_blocks import Runs
from p4reduce.tensors.union import (
    UnionSum,
    agreement,
    agrees_by_shape,
    expected_union,
    is_dense,
    sum_of,
)

SIZE = 1 << 20
WORLD = 8


def taken(array: Any, precision: str | None = None) -> UnionSum:
    return sum_of(array, "sum", None, precision, dense=False, world_size=WORLD)


def at_random(rng: np.random.Generator, size: int, density: float) -> SparseElements:
    indices = rng.choice(size, round(size * density), replace=False)
    return SparseElements(indices, np.ones(len(indices), np.float32), size)


@pytest.mark.parametrize(
    ("density", "dense"), [(0.0, False), (0.001, False), (0.1, False), (0.3, True), (1.0, True)]
)
def test_the_cheaper_way_is_taken(rng: np.random.Generator, density: float, dense: bool) -> None:
    every = [taken(at_random(rng, SIZE, density)) for _ in range(WORLD)]
    facts = np.array([asked.facts() for asked in every])
    if density:
        assert {is_dense(asked, facts) for asked in every} == {dense}


def test_elements_in_a_row_go_by_blocks() -> None:
    run = taken(SparseElements(np.arange(2048), np.ones(2048, np.float32), SIZE))
    assert run.facts() == (2048, 8)
    assert is_dense(run, np.array([run.facts()] * WORLD))


def test_facts_count_blocks_once() -> None:
    rows = taken(SparseRows([0, 1, 9], np.ones((3, 100), np.float32), (20, 100)))
    assert rows.facts() == (3, 2)
    wide = taken(SparseRows([0, 3], np.ones((2, 700), np.float32), (4, 700)))
    assert wide.facts() == (2, 6)
    narrow = taken(SparseElements([0, 300, 511, 512], np.ones(4, np.float32), SIZE), "int16")
    assert narrow.facts() == (4, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("told", [True, False])
def test_what_ranks_give_adds_up_to_the_union(
    rng: np.random.Generator, world: int, told: bool
) -> None:
    for size in (0, 1, 500, 1792, 1793, 30_000):
        own = [
            np.unique(rng.integers(0, size, rng.integers(0, size + 1) // 9)) for _ in range(world)
        ]
        runs = [Runs(some, np.ones((len(some), 2), np.int8), 2 * size) for some in own]
        counts = [len(some) for some in own] if told else None
        given = [
            agreement(mine, rank=rank, world_size=world, counts=counts)
            for rank, mine in enumerate(runs)
        ]
        total = np.sum([mine for mine, _ in given], axis=0, dtype=given[0][0].dtype)
        for _, union in given:
            assert union(total).tolist() == np.unique(np.concatenate(own)).tolist()


@pytest.mark.parametrize(("size", "marks"), [(1792, True), (1793, False)])
def test_marks_go_where_they_take_no_more_than_codes(size: int, marks: bool) -> None:
    """Each rank's code takes a frame, and so do all marks of eight ranks up to 256 × 7."""
    runs = Runs(np.array([5]), np.ones((1, 1), np.float32), size)
    mine, _ = agreement(runs, rank=3, world_size=WORLD, counts=[1] * WORLD)
    assert (mine.dtype == np.int32, mine.nbytes <= 1024) == (marks, True)
    assert agreement(runs, rank=3, world_size=WORLD)[0].dtype == np.int32


@pytest.mark.parametrize(
    ("shape", "whether"),
    [((20_000, 64), True), ((20_000, 1024), False), ((10_000_000, 64), False), ((0, 4), False)],
)
def test_shapes_alone_say_whether_ranks_agree(shape: tuple[int, ...], whether: bool) -> None:
    assert agrees_by_shape(shape, WORLD) is whether


def test_fill_is_the_papers() -> None:
    """Renggli et al., SC 2019: N(1 - (1 - k/N)^P)."""
    assert expected_union(SIZE, [1049] * WORLD) == pytest.approx(
        SIZE * (1 - (1 - 1049 / SIZE) ** WORLD)
    )
    assert expected_union(0, []) == 0


def test_zeros_are_left_out_and_repetitions_are_added_up() -> None:
    given = taken(SparseElements([7, 3, 7, 5], np.array([1, 2, 3, 0], np.int32), (2, 6)))
    assert given.runs.indices.tolist() == [3, 7]
    assert given.runs.values.tolist() == [[2], [4]]
    assert given.shape == (2, 6)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (SparseElements([12], [1.0], 12), ValueError, r"indices\[0\] = 12: there are 12 elements"),
    (SparseElements([-1], [1.0], 12), ValueError, r"indices\[0\] = -1: there are 12 elements"),
    (SparseElements([1, 2], [1.0], 12), ValueError, r"values have shape \(1,\); there are 2"),
    (SparseElements([1], [[1.0]], 12), ValueError, r"values have shape \(1, 1\); \(1,\) is"),
    (SparseElements([1.5], [1.0], 12), TypeError, "dtype float64; integers in one dimension"),
    (SparseElements([1], [1j], 12), TypeError, "dtype complex128 cannot be reduced"),
    (SparseElements([1], [1.0], -3), ValueError, r"shape=\(-3,\): at least one dimension"),
    (SparseElements([1], [1.0], "no"), TypeError, "shape='no'"),  # type: ignore[arg-type]
    (SparseElements([1, 4], [1.0, np.nan], 12), ValueError, "the value at index 4 is nan: finite"),
    (SparseElements([4, 4], [1e308, 1e308], 12), ValueError, "the value at index 4 is inf"),
    (SparseElements([4], [1e39], 12), p4reduce.ValueRangeError, "index 4 has a magnitude of 2^"),
    (
        SparseElements([4, 4], np.array([100, 100], np.int8), 12),
        p4reduce.ValueRangeError,
        "the values given for 4 add up to more than int8 holds",
    ),
    (SparseBlocks([2, 1], np.ones((2, 4)), 12), ValueError, "have to ascend"),
    ([1, 2], TypeError, "SparseElements, SparseRows, SparseBlocks or a scipy.sparse matrix"),
]


@pytest.mark.parametrize(("array", "kind", "message"), WRONG)
def test_wrong_input_is_named(array: Any, kind: type[Exception], message: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(kind, match=message.replace("^", r"\^")):
        taken(array)
