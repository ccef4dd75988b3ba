# SPDX-License-Identifier: Apache-2.0
"""Floats to lanes and back: the bound of the module's text, for any data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from encoded import EncodedRank, summed
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from p4reduce.errors import ValueRangeError
from p4reduce.tensors.measure import BlockTables, block_exponents
from p4reduce.tensors.quantise import factors_to_nearest, headroom
from p4reduce.wire.calls import Operation

LANES = 8  # of a row; the functions take any number
INT32_MAX = 2**31 - 1

Array = npt.NDArray[Any]


def measure(rows: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    tables = BlockTables(len(rows))
    block_exponents(rows, tables)
    return tables.exponents[:-1], tables.nonzero


def float_rows(dtype: type, largest: float) -> st.SearchStrategy[Array]:
    return st.integers(1, 9).flatmap(
        lambda world: hnp.arrays(
            dtype,
            (world, 3 * LANES),
            elements=st.floats(
                -largest, largest, width=8 * np.dtype(dtype).itemsize, allow_subnormal=True
            ),
        )
    )


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_within_the_bound(dtype: type, mean: bool) -> None:
    largest = float(np.finfo(np.float32).max)

    @given(float_rows(dtype, largest))
    @settings(max_examples=150, deadline=None)
    def check(ranks: Array) -> None:
        world = len(ranks)
        op = Operation.MEAN if mean else Operation.SUM
        lanes, result = summed(ranks, None, op, 0)
        assert np.abs(lanes).max() <= INT32_MAX
        exact = np.array([math.fsum(column) for column in ranks.T.astype(float)])
        agreed = measure(np.abs(ranks).max()[None, None])[0]
        bound = world * np.exp2(agreed.astype(float) - 126 - headroom(world))
        if mean:
            exact, bound = exact / world, bound / world
        limits = np.finfo(dtype)
        inside = np.abs(exact) + bound < float(limits.max)  # elsewhere infinity may be right
        rounding = np.maximum(np.abs(exact) + bound, float(limits.tiny)) * float(limits.eps)
        error = np.abs(result.astype(float) - exact)
        assert (error <= bound + rounding)[inside].all()

    check()


@given(
    hnp.arrays(np.uint32, (4, LANES), elements=st.integers(0, 2**32 - 1)),
)
def test_exponents_are_those_in_the_bits_of_float32(bits: Array) -> None:
    rows = bits.view(np.float32)
    exponents, nonzero = measure(rows)
    fields = (bits >> 23) & 0xFF
    assert np.array_equal(exponents, fields.max(axis=1))
    assert np.array_equal(nonzero, (rows != 0).any(axis=1))


@given(hnp.arrays(np.float64, (4, LANES), elements=st.floats(-1e38, 1e38)))
def test_float64_has_the_exponents_of_float32(rows: Array) -> None:
    exponents, nonzero = measure(rows)
    largest = np.abs(rows).max(axis=1)
    for exponent, value in zip(exponents.tolist(), largest.tolist(), strict=True):
        assert value < 2.0 ** (exponent - 126)
        assert exponent == 0 or value >= 2.0 ** (exponent - 127)
    assert np.array_equal(nonzero, largest != 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_nan_and_infinity_have_exponent_255(dtype: type, value: float) -> None:
    rows = np.ones((3, LANES), dtype)
    rows[1, 5] = value
    exponents, nonzero = measure(rows)
    assert exponents.tolist() == [127, 255, 127]
    assert nonzero.all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_zeros_of_either_sign_are_zeros(dtype: type) -> None:
    rows = np.zeros((2, LANES), dtype)
    rows[1, ::2] *= -1
    exponents, nonzero = measure(rows)
    assert exponents.tolist() == [0, 0]
    assert not nonzero.any()


def test_subnormal_numbers_are_not_zeros() -> None:
    rows = np.full((1, LANES), np.finfo(np.float32).smallest_subnormal)
    exponents, nonzero = measure(rows)
    assert exponents.tolist() == [0]
    assert nonzero.all()
    rank = EncodedRank(rows[0], 4)
    result = rank.read(rank.lanes(exponents), exponents)
    assert np.array_equal(result, rows[0])  # 2^-149 is a power of two that the lanes can hold


@pytest.mark.parametrize("value", [2.0**128, -(2.0**128), 1.7e308])
def test_float64_beyond_float32_is_named(value: float) -> None:
    rows = np.ones((3, LANES))
    rows[2, 1] = value
    with pytest.raises(ValueRangeError, match=str(value).replace("+", r"\+")):
        measure(rows)


def test_long_arrays_are_measured_to_the_end() -> None:
    rows = np.zeros((2000, LANES), np.float32)
    rows[1999, 7] = 4.0
    exponents, nonzero = measure(rows)
    assert np.flatnonzero(nonzero).tolist() == [1999]
    assert exponents[1999] == 129


@pytest.mark.parametrize("world", [*range(1, 65), 100, 127, 128, 129, 1000, 4095, 4096])
def test_lanes_never_overflow(world: int) -> None:
    limit = factors_to_nearest(world, mean=False).limit
    assert world * limit <= INT32_MAX
    assert world * 2 ** headroom(world) <= INT32_MAX + 1 < 2 * world * 2 ** headroom(world)
    # The numbers next to the power of two, which rounding could carry over it.
    for dtype in (np.float32, np.float64):
        below = np.nextafter(dtype(1), dtype(0))
        rank = EncodedRank(np.array([below, -below, 0.5, 0.0], dtype), world)
        assert np.abs(rank.lanes(np.array([126], np.uint8))).max() <= limit


@pytest.mark.parametrize("world", [0, 4097])
def test_world_size_is_checked(world: int) -> None:
    with pytest.raises(ValueError, match=f"world size {world}"):
        headroom(world)
