# SPDX-License-Identifier: Apache-2.0
"""Sparse arrays as blocks: the same as of the dense array, without one."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from measured_blocks import measured
from p4reduce import SparseBlocks, SparseRows, ValueRangeError
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.sparse import to_runs
from p4reduce.tensors.sparse_blocks import SparseSums
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call

Array = npt.NDArray[Any]

SLOTS = 32
BLOCK = 256
KINDS = [np.float32, np.int32, np.float16, np.float64]


def some_rows(
    rng: np.random.Generator, dtype: type, rows: int, width: int, given: int
) -> tuple[SparseRows, Array]:
    """Rows, some of them several times, and what numpy makes of them."""
    indices = rng.integers(0, rows, given)
    values = rng.integers(-9, 9, (given, width)).astype(dtype)
    dense = np.zeros((rows, width), dtype)
    np.add.at(dense, indices, values)
    return SparseRows(indices, values, (rows, width)), dense


@pytest.mark.parametrize("lanes", [256, 512])
@pytest.mark.parametrize("width", [1, 3, 64, 100, 256, 300, 1024, 2000])
@pytest.mark.parametrize("given", [0, 1, 7, 300])
def test_blocks_are_those_of_the_dense_array(
    rng: np.random.Generator, lanes: int, width: int, given: int
) -> None:
    rows = int(rng.integers(1, 400))
    array, dense = some_rows(rng, rng.choice(KINDS), rows, width, given)
    assert np.array_equal(array.to_dense(), dense)
    source = to_runs(array)[0].source(lanes)
    right = Blocks(dense.reshape(-1), lanes)
    assert (len(source), source.dtype) == (len(right), right.dtype)
    exponents, nonzero = measured(source)
    right_exponents, right_nonzero = measured(right)
    assert np.array_equal(nonzero, right_nonzero)
    assert np.array_equal(exponents[nonzero], right_exponents[nonzero])
    blocks = rng.permutation(np.flatnonzero(nonzero))
    gathered, wanted = (np.full((len(blocks), lanes), 77, dense.dtype) for _ in range(2))
    source.gather(blocks, gathered)
    right.gather(blocks, wanted)
    assert np.array_equal(gathered, wanted)


@pytest.mark.parametrize("density", [0.001, 0.05, 0.9])
def test_sums_of_any_kind_are_those_of_the_dense_array(
    rng: np.random.Generator, density: float
) -> None:
    lanes = 256
    dtype = np.dtype(rng.choice(KINDS))
    size = int(rng.integers(1, 300)) * lanes - int(rng.integers(0, lanes))
    count = -(-size // lanes)
    padded = np.zeros(count * lanes, dtype)
    padded[:size] = rng.integers(-5, 5, size) * (rng.random(size) < density)
    nan = np.unique([*rng.choice(count, count // 10, replace=False), count - 1])
    blocks = padded.reshape(count, lanes)

    sums = SparseSums(dtype, size, lanes)
    sums.fill(np.ones(count, np.bool_), 0)
    for some in np.array_split(rng.permutation(count), 20):
        columns = [slice(0, 128), slice(128, None), slice(None)][int(rng.integers(3)) :]
        for part in columns:  # halves, and wholes after halves
            sums.scatter(some, blocks[some, part], part)
    if dtype.kind == "f":
        sums.fill(nan, np.nan)
        blocks[nan] = np.nan
        padded[size:] = 0

    places, values = sums.elements()
    assert np.array_equal(places, np.flatnonzero(padded))
    assert np.array_equal(values, padded[places], equal_nan=True)
    for width in (1, 7, 64, 256, 1000):
        numbers, rows = sums.rows(width)
        wanted = np.zeros(-(-size // width) * width, dtype)
        wanted[:size] = padded[:size]
        wanted_rows = wanted.reshape(-1, width)
        assert np.array_equal(numbers, np.flatnonzero(wanted_rows.any(axis=1)))
        assert np.array_equal(rows, wanted_rows[numbers], equal_nan=True)


@pytest.mark.parametrize("width", [2, BLOCK])
def test_callers_may_write_to_what_they_gave(width: int) -> None:
    values = np.ones((3, width), np.float32)
    source = to_runs(SparseRows([1, 5, 9], values, (10, width)))[0].source(BLOCK)
    values[:] = 7
    rows = np.empty((1, BLOCK), np.float32)
    source.gather(np.array([5 * width // BLOCK]), rows)
    assert rows.max() == 1


def test_blocks_may_end_beyond_the_array() -> None:
    blocks = np.zeros((2, 1024), np.float32)
    blocks[0] = 1
    blocks[1, :76] = 2
    array = SparseBlocks([0, 2], blocks, 2 * 1024 + 76)
    dense = array.to_dense()
    assert (dense.shape, dense.sum()) == ((2124,), 1024 + 2 * 76)
    source = to_runs(array)[0].source(256)
    assert len(source) == 9
    assert np.flatnonzero(measured(source)[1]).tolist() == [0, 1, 2, 3, 8]


@pytest.mark.parametrize("given_as", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_formats_come_back(rng: np.random.Generator, given_as: str, kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = rng.integers(-3, 3, (70, 90)).astype(np.float32) * (rng.random((70, 90)) < 0.05)
    given = getattr(sparse, f"coo_{kind}")(dense).asformat(given_as)
    runs, shape, give_back = to_runs(given)
    assert shape == (70, 90)
    assert np.array_equal(runs.dense().reshape(shape), dense)
    sums = SparseSums(runs.values.dtype, runs.size, 256)
    blocks = Blocks(dense.reshape(-1), 256)
    rows = np.empty((len(blocks), 256), np.float32)
    blocks.gather(np.arange(len(blocks)), rows)
    sums.scatter(np.arange(len(blocks)), rows, slice(None))
    result = give_back(*sums.rows(runs.width))
    assert (type(result), result.dtype) == (type(given), given.dtype)
    assert np.array_equal(result.toarray(), dense)


def test_scipy_duplicates_are_added_up() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    given = sparse.coo_array(
        (np.float32([1, 2, 4]), (np.int32([1, 0, 1]), np.int32([2, 0, 2]))), shape=(2, 3)
    )
    assert to_runs(given)[0].dense().tolist() == [2, 0, 0, 0, 0, 5]


@pytest.mark.parametrize("form", ["rows", "narrow rows", "blocks", "scipy"])
def test_nothing_as_large_as_the_dense_array_is_made(rng: np.random.Generator, form: str) -> None:
    elements = 25_000_000 // 4
    dense_bytes = 4 * elements
    given = elements // 100
    if form == "scipy":
        sparse = pytest.importorskip("scipy.sparse")
        places = rng.integers(0, elements, given)
        numbers = np.divmod(places, 2500)
        array: Any = sparse.coo_array(
            (np.ones(given, np.float32), numbers), shape=(elements // 2500, 2500)
        )
    else:
        width = {"rows": 64, "narrow rows": 4, "blocks": 256}[form]
        rows = elements // width
        numbers = np.sort(rng.choice(rows, rows // 100, replace=False))
        values = np.ones((len(numbers), width), np.float32)
        array = SparseRows(numbers, values, (rows, width))
        if form == "blocks":
            array = SparseBlocks(numbers, values, rows * width)
    tracemalloc.start()
    try:
        runs, _, give_back = to_runs(array)
        sums = SparseSums(runs.values.dtype, runs.size, 256)
        call = Call("allreduce", "float32", runs.size)
        one = Collective(call, runs.source(256), sums, sequence=0, slots=SLOTS, timeout=9.0)
        lanes = np.empty((SLOTS, 256), np.float32)
        nonzero = np.unique(one.next_nonzero)[:-1]
        for start in range(0, len(nonzero), SLOTS):
            some = nonzero[start : start + SLOTS]
            one.source.gather(some, lanes[: len(some)])
            sums.scatter(some, lanes[: len(some)], slice(None))
        result = give_back(*sums.rows(runs.width))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if form == "scipy":
        assert result.sum() == given
    else:
        total = result.values if isinstance(result, SparseRows) else result.blocks
        assert np.array_equal(total, values)
    assert peak < dense_bytes / 2, f"{peak / dense_bytes:.2f} of the dense array"


def test_repeated_rows_of_integers_may_not_overflow() -> None:
    array = SparseRows([5, 2, 5], np.full((3, 2), 2**30, np.int32), (9, 2))
    with pytest.raises(ValueRangeError, match=r"given for 5 .*int32"):
        to_runs(array)


ROWS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        (ROWS, TypeError, "ndarray.*allreduce"),
        (SparseRows([0, 9], ROWS, (9, 3)), ValueError, r"indices\[1\] = 9.*9 rows"),
        (SparseRows([-1, 0], ROWS, (9, 3)), ValueError, r"indices\[0\] = -1"),
        (SparseRows(np.uint64([0, 2**63]), ROWS, (9, 3)), ValueError, rf"indices\[1\] = {2**63}:"),
        (SparseRows([0.0, 1.0], ROWS, (9, 3)), TypeError, "float64"),
        (SparseRows([[0, 1]], ROWS, (9, 3)), TypeError, r"\(1, 2\)"),
        (SparseRows([0], ROWS, (9, 3)), ValueError, r"\(2, 3\).*1 indices"),
        (SparseRows([0, 1], ROWS, (9, 4)), ValueError, r"\(2, 3\).*\(9, 4\)"),
        (SparseRows([0, 1], ROWS, ()), ValueError, r"shape=\(\)"),
        (SparseRows([0, 1], ROWS, 10), TypeError, "shape=10: a sequence of integers"),
        (SparseBlocks([0, 2], ROWS, 2048.0), TypeError, r"size=2048\.0: an integer"),
        (SparseRows([0, 1], ROWS.astype(np.int64), (9, 3)), TypeError, "int64"),
        (SparseBlocks([1, 1], ROWS, 9), ValueError, r"numbers\[1\] = 1 comes after 1"),
        (SparseBlocks([2, 0], ROWS, 9), ValueError, r"numbers\[1\] = 0 comes after 2"),
        (SparseBlocks([0, 3], ROWS, 9), ValueError, r"numbers\[1\] = 3.*3 blocks of 3"),
        (SparseBlocks([0, 2], ROWS, 8), ValueError, r"blocks\[1\].*element 2 on"),
        (SparseBlocks([0, 2], ROWS[0], 8), ValueError, r"\(3,\)"),
        (SparseBlocks([0, 2], ROWS, -1), ValueError, "size=-1"),
    ],
)
def test_wrong_input_is_named(array: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        to_runs(array)
