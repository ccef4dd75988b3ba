# SPDX-License-Identifier: Apache-2.0
"""Narrow lanes: within the bound for any data, right on average, and never beyond a lane."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from encoded import EncodedRank, summed
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from p4reduce import MEAN, SUM, error_bound
from p4reduce.reference.numbers import rounded_at_random
from p4reduce.tensors.noise import Noise, check_seed
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.stochastic import factors_at_random, largest_world_size
from p4reduce.wire.format import Format

Array = npt.NDArray[Any]

NARROW = {"int16": Format.INT16, "int8": Format.INT8, "int4": Format.INT4}
LANES = 8  # as many numbers do
narrow = pytest.mark.parametrize("precision", list(NARROW))


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
        return hnp.arrays(dtype, (world, 2 * LANES), elements=numbers)

    @given(worlds.flatmap(rows_of), st.integers(0, 2**32))
    @settings(max_examples=60, deadline=None)
    def check(ranks: Array, seed: int) -> None:
        world = len(ranks)
        total, result = summed(ranks, precision, op, seed)
        assert np.abs(total).max() <= lane_maximum
        exact = np.array([math.fsum(column) for column in ranks.T.astype(float)])
        exact /= world if op is MEAN else 1
        bound = error_bound(np.abs(ranks).max(), world, precision, op)
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
    ends = [below, -below, 1 - 2.0**-17, -1 + 2.0**-17, 0.5, -0.5, 0.0, 2.0**-40]
    numbers: list[float] = np.array(ends, dtype).tolist()
    double = dtype is np.float64
    most = largest_world_size(NARROW[precision])
    for world in {*range(1, 65), *range(65, most, 199), most} & {*range(1, most + 1)}:
        limit = factors_at_random(NARROW[precision], world, mean=False).limit
        assert world * limit <= NARROW[precision].lane_maximum
        assert limit >= (1 if precision == "int4" else 2)
        for noise, number in itertools.product((0, 1, 0x7FFF, 0x8000, 0xFFFF), numbers):
            lane = rounded_at_random(number, 126, limit, noise, double=double)
            assert abs(lane) <= limit, (world, noise)
            assert abs(lane - number * limit) < 1 + limit * 2.0**-24


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_stay_zeros(zero: float) -> None:
    assert rounded_at_random(zero, 127, 31, 0xFFFF) == 0


@pytest.mark.parametrize("exponent", [0, 1, 39, 40, 254])
def test_whole_lanes_come_back_as_they_were(exponent: int) -> None:
    """At both ends of the exponents and where float32 does not suffice for the scale."""
    lanes = np.array([0, 1, -1, 12_345, -32_767, 32_767, 2, 3])
    unit = math.ldexp(1.0, exponent - 126) / Format.INT16.lane_maximum
    with np.errstate(over="ignore"):  # of the limit itself, at the largest exponent
        exact = (lanes * unit).astype(np.float32)
    rank = EncodedRank(exact, 1, "int16")
    sums = np.zeros((1, Format.INT16.lanes), np.int64)
    sums[0, : len(lanes)] = lanes
    agreed = np.array([exponent], np.uint8)
    if exponent < 254:
        assert np.abs(rank.lanes(agreed) - sums).max() <= 1
    assert np.array_equal(rank.read(sums, agreed), exact)


# -- On average ----------------------------------------------------------------------------------


@narrow
def test_rounding_is_unbiased(precision: str, rng: np.random.Generator) -> None:
    """The mean of 20,000 roundings of each of a block's numbers.

    By Bernstein's inequality, the mean of N variables within a range of 1, of variance v, is off
    by t or more with a probability of at most 2 exp(-N t^2 / (2 v + 2 t / 3)). With 10^-12 for each
    number, a false alarm comes once in 10^9 runs at most. Biases of 0.03 of a unit are found;
    rounding down, up, to nearest or towards zero has up to 0.5 or 1.
    """
    times, together = 20_000, 500
    unlikely = math.log(2 / 1e-12)
    limit = NARROW[precision].lane_maximum // 3
    numbers = rng.uniform(-1, 1, NARROW[precision].lanes).astype(np.float32)
    agreed = np.full(together, 126, np.uint8)
    total = np.zeros(len(numbers))
    for seed in rng.integers(1 << 62, size=times // together).tolist():
        rank = EncodedRank(np.tile(numbers, together), 3, precision, seed=seed)
        total += rank.lanes(agreed).sum(axis=0)
    exact = numbers.astype(np.float64) * limit
    fraction = exact - np.floor(exact)
    variance = fraction * (1 - fraction)
    # Solved for t.
    chance = unlikely / 3 + np.sqrt((unlikely / 3) ** 2 + 2 * variance * unlikely * times)
    # Half of the last of the 16 bits after the point, and float32's rounding.
    known = 2.0**-17 + limit * 2.0**-24
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
