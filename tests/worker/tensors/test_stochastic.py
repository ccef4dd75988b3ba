# SPDX-License-Identifier: Apache-2.0
"""Narrow lanes: within the bound for any data, right on average, and never beyond a lane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from p4reduce import MEAN, SUM, error_bound
from p4reduce.tensors.noise import Noise, check_seed
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.quantise import block_exponents
from p4reduce.tensors.stochastic import StochasticQuantiser, largest_world_size
from p4reduce.wire.format import Format

Array = npt.NDArray[Any]

NARROW = {"int16": Format.INT16, "int8": Format.INT8, "int4": Format.INT4}
LANES = 8  # of a row; the functions take any multiple of 4
narrow = pytest.mark.parametrize("precision", list(NARROW))


def exponents_of(rows: Array) -> npt.NDArray[np.uint8]:
    exponents = np.empty(len(rows), np.uint8)
    block_exponents(rows, exponents, np.empty(len(rows), np.bool_))
    return exponents


def lanes_of(quantiser: StochasticQuantiser, rows: Array, agreed: Array, noise: Array) -> Array:
    lanes = np.empty(rows.shape, f">i{1 if quantiser.limit * 2 <= 254 else 2}")
    quantiser.quantise(rows.copy(), agreed, lanes, noise)
    return lanes


# -- The bound -----------------------------------------------------------------------------------


@narrow
@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_within_the_bound(precision: str, op: Any, dtype: type) -> None:
    """As a user computes the bound, from the largest magnitude; and the lanes' sum in 64 bits
    fits into a lane."""
    lane_maximum = NARROW[precision].lane_maximum
    most = min(largest_world_size(NARROW[precision]), 64)
    worlds = st.one_of(st.integers(1, min(most, 9)), st.just(most))
    largest = float(np.finfo(np.float32).max)

    def rows_of(world: int) -> st.SearchStrategy[Array]:
        width = 8 * np.dtype(dtype).itemsize
        numbers = st.floats(-largest, largest, width=width, allow_subnormal=True)
        return hnp.arrays(dtype, (world, 2, LANES), elements=numbers)

    @given(worlds.flatmap(rows_of), st.integers(0, 2**32))
    @settings(max_examples=60, deadline=None)
    def check(ranks: Array, seed: int) -> None:
        world = len(ranks)
        quantiser = StochasticQuantiser(world, NARROW[precision])
        agreed = np.max([exponents_of(rows) for rows in ranks], axis=0)
        total = np.zeros(ranks.shape[1:], np.int64)
        for rank, rows in enumerate(ranks):
            noise = Noise(seed, rank, 0).rows(np.arange(len(rows)), LANES)
            total += lanes_of(quantiser, rows, agreed, noise)
        assert np.abs(total).max() <= lane_maximum
        result = np.empty(total.shape, dtype)
        with np.errstate(over="ignore"):
            quantiser.dequantise(total, agreed, result, mean=op is MEAN)
        exact = np.array(
            [math.fsum(column) for column in ranks.reshape(world, -1).T.astype(float)]
        ).reshape(total.shape)
        exact /= world if op is MEAN else 1
        bound = error_bound(np.abs(ranks).max(axis=(0, 2)), world, precision, op)[:, None]
        limits = np.finfo(dtype)
        inside = np.abs(exact) + bound < float(limits.max)  # elsewhere infinity may be right
        rounding = np.maximum(np.abs(exact) + bound, float(limits.tiny)) * float(limits.eps) / 2
        error = np.abs(result.astype(float) - exact)
        assert (error <= bound + rounding)[inside].all()

    check()


@narrow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_stay_within_the_limit_at_all_world_sizes(precision: str, dtype: type) -> None:
    """At the ends of the range and with the largest noise, where a carry would lead beyond."""
    below = np.nextafter(dtype(1), dtype(0))
    rows = np.array([[below, -below, 1 - 2.0**-17, -1 + 2.0**-17, 0.5, -0.5, 0.0, 2.0**-40]])
    rows = rows.astype(dtype)
    agreed = np.array([126], np.uint8)
    most = largest_world_size(NARROW[precision])
    for world in {*range(1, 65), *range(65, most, 199), most} & {*range(1, most + 1)}:
        quantiser = StochasticQuantiser(world, NARROW[precision])
        assert world * quantiser.limit <= NARROW[precision].lane_maximum
        assert quantiser.limit >= (1 if precision == "int4" else 2)
        for noise in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
            all_the_same = np.full(rows.shape, noise, np.uint16)
            lanes = np.empty(rows.shape, np.int64)
            quantiser.quantise(rows.copy(), agreed, lanes, all_the_same)
            assert np.abs(lanes).max() <= quantiser.limit, (world, noise)
            assert np.abs(lanes - rows * quantiser.limit).max() < 1 + quantiser.limit * 2.0**-24


def test_zeros_stay_zeros() -> None:
    quantiser = StochasticQuantiser(4, Format.INT8)
    rows = np.zeros((1, LANES), np.float32)
    rows[0, 1::2] = -0.0
    noise = np.full(rows.shape, 0xFFFF, np.uint16)
    assert not lanes_of(quantiser, rows, np.array([127], np.uint8), noise).any()


@pytest.mark.parametrize("exponent", [0, 1, 39, 40, 254])
def test_whole_lanes_come_back_as_they_were(exponent: int) -> None:
    """At both ends of the exponents and where float32 does not suffice for the scale."""
    quantiser = StochasticQuantiser(1, Format.INT16)
    unit = math.ldexp(1.0, exponent - 126) / quantiser.limit
    lanes = np.array([[0, 1, -1, 12_345, -32_767, 32_767, 2, 3]])
    agreed = np.array([exponent], np.uint8)
    result = np.empty(lanes.shape, np.float32)
    with np.errstate(over="ignore"):  # of the limit itself, at the largest exponent
        quantiser.dequantise(lanes, agreed, result)
        assert np.array_equal(result, (lanes * unit).astype(np.float32))
    if exponent < 254:
        noise = np.zeros(lanes.shape, np.uint16)
        assert np.abs(lanes_of(quantiser, lanes * unit, agreed, noise) - lanes).max() <= 1


# -- On average ----------------------------------------------------------------------------------


@narrow
def test_rounding_is_unbiased(precision: str, rng: np.random.Generator) -> None:
    """The mean of 20,000 roundings of each of 1,024 numbers.

    By Bernstein's inequality, the mean of N variables within a range of 1, of variance v, is off
    by t or more with a probability of at most 2 exp(-N t^2 / (2 v + 2 t / 3)). With 10^-12 for each
    number, a false alarm comes once in 10^9 runs at most. Biases of 0.03 of a unit are found;
    rounding down, up, to nearest or towards zero has up to 0.5 or 1.
    """
    times, count = 20_000, 1024
    unlikely = math.log(2 / 1e-12)
    quantiser = StochasticQuantiser(3, NARROW[precision])
    numbers = rng.uniform(-1, 1, count).astype(np.float32)
    agreed = np.full(times, 126, np.uint8)
    noise = Noise(int(rng.integers(1 << 62)), 0, 0)
    total = np.zeros(count)
    for start in range(0, times, 1000):
        rows = np.repeat(numbers[None], 1000, axis=0)
        lanes = np.empty(rows.shape, np.int32)
        blocks = np.arange(start, start + 1000)
        quantiser.quantise(rows, agreed[:1000], lanes, noise.rows(blocks, count))
        total += lanes.sum(axis=0)
    exact = numbers.astype(np.float64) * quantiser.limit
    fraction = exact - np.floor(exact)
    variance = fraction * (1 - fraction)
    # Solved for t.
    chance = unlikely / 3 + np.sqrt((unlikely / 3) ** 2 + 2 * variance * unlikely * times)
    # Half of the last of the 16 bits after the point, and float32's rounding.
    known = 2.0**-17 + quantiser.limit * 2.0**-24
    assert (np.abs(total / times - exact) < chance / times + known).all()


def test_noise_is_even_and_unrelated(rng: np.random.Generator) -> None:
    """Mean, bits and correlations, 24 tests at 6.8 standard errors each: a false alarm once in
    4 * 10^9 runs."""
    seed = int(rng.integers(1 << 62))
    blocks = np.arange(2000)
    numbers = Noise(seed, 0, 0).rows(blocks, 512)
    flat = numbers.ravel().astype(np.float64)
    assert abs(flat.mean() - 32767.5) < 6.8 * 65536 / math.sqrt(12 * flat.size)
    for bit in range(16):
        ones = np.count_nonzero(numbers >> bit & 1)
        assert abs(ones - flat.size / 2) < 6.8 * math.sqrt(flat.size) / 2
    others = {
        "rank": Noise(seed, 1, 0).rows(blocks, 512),
        "collective": Noise(seed, 0, 1).rows(blocks, 512),
        "seed": Noise(seed + 1, 0, 0).rows(blocks, 512),
        "both": Noise(seed, 1, 1).rows(blocks, 512),
        "next block": np.roll(numbers, 1, axis=0),
        "next lane": np.roll(numbers, 1, axis=1),
        "4 lanes on": np.roll(numbers, 4, axis=1),
    }
    for name, other in others.items():
        r = np.corrcoef(flat, other.ravel().astype(np.float64))[0, 1]
        assert abs(r) < 6.8 / math.sqrt(flat.size), name


def test_noise_depends_on_the_place_alone() -> None:
    """Not on which blocks are rounded together, or when."""
    noise = Noise(7, 3, 11)
    whole = noise.rows(np.arange(50), 1024)
    order = np.random.default_rng(1).permutation(50)
    assert np.array_equal(noise.rows(order, 1024), whole[order])
    assert np.array_equal(Noise(7, 3, 11).rows(np.array([49]), 1024), whole[49:])
    assert not np.array_equal(Noise(None, 3, 11).rows(np.arange(50), 1024), whole)


# -- What callers give ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_lanes_of_floats_are_a_choice(dtype: type) -> None:
    floats = np.dtype(dtype)
    assert lane_format(floats, None, 64) is lane_format(floats, "int32", 64) is Format.INT32
    assert lane_format(floats, "int16", 64) is Format.INT16
    assert lane_format(floats, "int8", 63) is Format.INT8
    assert lane_format(floats, "int4", 7) is Format.INT4


def test_lanes_of_integers_are_their_own() -> None:
    for kind, lanes in ((np.int8, Format.INT8), (np.int16, Format.INT16), (np.int32, Format.INT32)):
        assert lane_format(np.dtype(kind), None, 64) is lanes
        with pytest.raises(TypeError, match=r"precision='int16' is for floats.*exact"):
            lane_format(np.dtype(kind), "int16", 2)


def test_a_precision_with_no_bit_to_spare_is_refused() -> None:
    """A lane's limit is 1 for 64 ranks with 8 bits, and 2 for 63."""
    with pytest.raises(ValueError, match="63 ranks at most; take 'int16'"):
        lane_format(np.dtype(np.float32), "int8", 64)
    with pytest.raises(ValueError, match="63 ranks at most"):
        error_bound(1.0, 64, "int8")
    with pytest.raises(ValueError, match="world size 64 is not within 1 to 63"):
        StochasticQuantiser(64, Format.INT8)
    with pytest.raises(ValueError, match="7 ranks at most; take 'int8'"):
        lane_format(np.dtype(np.float32), "int4", 8)
    with pytest.raises(ValueError, match="7 ranks at most; take 'int16'"):
        lane_format(np.dtype(np.float32), "int4", 64)


@pytest.mark.parametrize("precision", ["int64", "float32", "", "INT8", 8])
def test_other_precisions_are_named(precision: Any) -> None:
    with pytest.raises(ValueError, match=f"precision={precision!r}: 'int32', 'int16', 'int8'"):
        lane_format(np.dtype(np.float32), precision, 2)


def test_seeds_are_checked() -> None:
    assert check_seed(None) is None
    assert check_seed(np.int64(5)) == 5
    with pytest.raises(ValueError, match=r"seed=-1: .* 0 or more"):
        check_seed(-1)
    with pytest.raises(TypeError, match=r"seed=1\.5: an integer"):
        check_seed(1.5)  # type: ignore[arg-type]


def test_bounds_are_those_of_the_docstring() -> None:
    assert error_bound(0.99, 4) == 2.0**-27
    assert error_bound(1.0, 4) == 2.0**-26  # not below 1, so the next power of two is 2
    assert error_bound(0.99, 4, "int16") == 4 * (1 / 8191 + 2.0**-24)
    assert error_bound(3.0, 4, "int8", MEAN) == 4 * (1 / 31 + 2.0**-24)
    assert error_bound(0.99, 7, "int4") == 7 * (1 + 2.0**-24)
    assert error_bound(0.0, 4, "int8") == 0
    assert error_bound(1e-45, 1, "int8") == error_bound(2.0**-127, 1, "int8") > 0
    assert np.array_equal(error_bound([[1.0], [8.0]], 2), [[2.0**-28], [2.0**-25]])


@pytest.mark.parametrize("largest", [-1.0, math.inf, [1.0, math.nan]])
def test_bounds_of_what_is_no_magnitude_are_refused(largest: Any) -> None:
    with pytest.raises(ValueError, match="largest="):
        error_bound(largest, 2)
    with pytest.raises(ValueError, match="world_size=4097"):
        error_bound(1.0, 4097)
