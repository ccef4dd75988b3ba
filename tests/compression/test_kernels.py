# SPDX-License-Identifier: Apache-2.0
"""The kernels of compression, bit for bit those of their specification."""

from __future__ import annotations

import os
import random
from typing import Any

import kernels_spec as spec
import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import kernels
from p4reduce.tensors.copy_pool import CopyPool

Array = npt.NDArray[Any]
FLOATS = (np.float16, np.float32, np.float64)
SIZES = (0, 1, 7, 8, 255, 256, 257, 1000, 2048, 5001)
UNITS = (1, 3, 8, 100, 256, 300, 2048)
GUARD = 1.5


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def numbers(rng: np.random.Generator, size: int, dtype: Any) -> Array:
    """Of all magnitudes, with zeros of both signs, ties and denormals; at any address."""
    some = rng.standard_normal(size) * np.exp2(rng.integers(-12, 12, size))
    special = np.array([0.0, -0.0, 1.0, -1.0, float(np.finfo(dtype).smallest_subnormal)])
    some = np.where(rng.random(size) < 0.3, rng.choice(special, size), some)
    return unaligned(some.astype(dtype))


def unaligned(array: Array) -> Array:
    """A copy at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = memory[1:].view(array.dtype)
    copy[:] = array
    return copy


def room(size: int, dtype: Any) -> Array:
    """For `size` numbers, and one behind them that nobody may touch."""
    return np.full(size + 1, GUARD, dtype)


def same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_what_is_wanted(rng: np.random.Generator, dtype: Any, size: int, unit: int) -> None:
    gradient, residual = numbers(rng, size, dtype), numbers(rng, size, dtype)
    before = room(size, dtype)
    before[:-1] = past = numbers(rng, size, dtype)
    units = -(-size // unit)
    whole, own, energies = room(size, dtype), room(units, np.float64), room(units, np.float64)
    products = room(2, np.float64)
    assert kernels.want(
        gradient,
        residual,
        unit,
        wanted=whole,
        own=own,
        energies=energies,
        before=before,
        products=products,
    )
    expected, _ = spec.wanted(gradient, residual)
    assert same(whole[:-1], expected)
    assert same(own[:-1], spec.energies(gradient, unit))
    assert same(energies[:-1], spec.energies(expected, unit))
    assert products[:-1].tolist() == [
        spec.product(gradient, past),
        spec.product(residual, gradient),
    ]
    assert same(before[:-1], gradient)
    assert {float(one[-1]) for one in (whole, own, energies, products, before)} == {GUARD}


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_wanted_without_a_residual(rng: np.random.Generator, dtype: Any) -> None:
    gradient = numbers(rng, 1000, dtype)
    whole, energies, before = np.empty_like(gradient), np.empty(4), np.empty_like(gradient)
    assert kernels.want(gradient, None, 256, wanted=whole, energies=energies, before=before)
    assert same(whole, gradient)
    assert same(before, gradient)
    assert same(energies, spec.energies(gradient, 256))
    assert kernels.want(gradient, None, 256)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**128])
def test_what_is_not_finite_is_found(rng: np.random.Generator, dtype: Any, bad: float) -> None:
    for at in (0, 5, 255, 256, 999):
        gradient = numbers(rng, 1000, dtype)
        with np.errstate(over="ignore"):
            gradient[at] = bad
        assert not kernels.want(gradient, None, 7)
        assert not kernels.look(gradient, 7)[0]
        assert not kernels.want(gradient, np.ones_like(gradient), 7, wanted=np.empty_like(gradient))
        finite, votes = kernels.votes(gradient, shared=256)
        assert finite == np.isfinite(gradient).all()
        assert same(votes, np.nan_to_num(np.sign(gradient)).astype(np.int8))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_sum_beyond_its_type_is_not_finite(dtype: Any) -> None:
    large = np.full(300, np.finfo(dtype).max, dtype)
    assert kernels.want(large, None, 256)
    assert not kernels.want(large, large, 256, wanted=np.empty_like(large))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_what_is_sent_and_what_is_left(
    rng: np.random.Generator, dtype: Any, size: int, unit: int
) -> None:
    whole = numbers(rng, size, dtype)
    all_units = -(-size // unit)
    units = rng.permutation(np.flatnonzero(rng.random(all_units) < 0.4))
    factors = rng.random(len(units)).astype(dtype).astype(np.float64)
    magnitude = float(dtype(rng.random()))
    hows: list[dict[str, Any]] = [{}, {"factors": factors}, {"magnitude": magnitude}]
    for how in hows:
        values = np.zeros(size + 1, dtype)
        some = kernels.keep(whole, units, unit, values[:-1], **how)
        expected, nonzero = spec.kept(
            whole, units, unit, how.get("factors"), how.get("magnitude", 0.0)
        )
        assert (values[:-1] == expected).all()
        assert same(some, nonzero)
        left = whole.copy()
        kernels.subtract(left, values[:-1], units, unit)
        assert same(left, whole - expected)
        left = whole.copy()
        kernels.subtract(left, values[:-1], None, unit)
        assert same(left, whole - expected)
        finite, found = kernels.look(values[:-1], unit)
        assert finite
        assert found.tolist() == spec.unit_rows(expected, unit).any(axis=1).tolist()
        assert values[-1] == 0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("unit", [1, 8, 300])
def test_norms(rng: np.random.Generator, dtype: Any, size: int, unit: int) -> None:
    values = numbers(rng, size, dtype)
    norms, counts = kernels.norms(values, unit)
    rows = spec.unit_rows(values, unit)
    assert norms.tolist() == [spec.eight_sums(np.abs(row)) for row in rows]
    assert counts.tolist() == np.count_nonzero(rows, axis=1).tolist()


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int16, np.int32])
@pytest.mark.parametrize("size", SIZES)
def test_the_largest(rng: np.random.Generator, dtype: Any, size: int) -> None:
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
        values[rng.random(size) < 0.2] = limits.min
    else:
        values = numbers(rng, size, dtype)
        for special in (np.nan, np.inf, -np.inf):
            values[rng.random(size) < 0.02] = special
    few = rng.choice(values, size) if size else values
    for one in (values, unaligned(few), np.zeros_like(values)):
        for count in {0, min(1, size), size // 100, size // 3, size}:
            assert same(kernels.largest(one, count), spec.largest(one, count))


def test_the_largest_of_many_alike(rng: np.random.Generator) -> None:
    """Whose bits differ in the last places only, and who stand at random."""
    for dtype, bits in ((np.float32, np.uint32), (np.float64, np.uint64)):
        one = np.array(1.0, dtype).view(bits)
        values = (one + rng.integers(0, 9, 4000).astype(bits)).view(dtype)
        for count in (1, 500, 3999):
            assert same(kernels.largest(values, count), spec.largest(values, count))


def test_impossible_counts_and_types_are_refused() -> None:
    for count in (-1, 4):
        with pytest.raises(ValueError, match=f"count {count} is not within 0 to 3"):
            kernels.largest(np.ones(3), count)
    for values in (np.ones(3, np.int64), np.ones(3, np.uint8), np.ones(3, np.complex64)):
        with pytest.raises(TypeError, match=f"values of {values.dtype}"):
            kernels.largest(values, 1)
    with pytest.raises(TypeError, match=f"an array of {np.dtype(np.longdouble)} was given"):
        kernels.usable(np.ones(3, np.longdouble))


def test_what_c_cannot_read_is_copied() -> None:
    strided, swapped = np.arange(12.0)[::3], np.arange(4.0).astype(">f8")
    assert kernels.usable(strided).tolist() == strided.tolist()
    assert kernels.usable(swapped).tolist() == swapped.tolist()
    whole = np.ones((3, 4), np.float32)
    assert np.shares_memory(kernels.usable(whole), whole)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tally", [np.int8, np.int16])
def test_votes(rng: np.random.Generator, dtype: Any, size: int, tally: Any) -> None:
    gradient, residual = numbers(rng, size, dtype), numbers(rng, size, dtype)
    shared, ranks = 512, int(rng.integers(1, 100))
    whole, means = room(size, dtype), room(-(-size // shared), np.float32)
    finite, votes = kernels.votes(
        gradient, residual, shared=shared, wanted=whole[:-1], means=means[:-1]
    )
    assert finite
    expected, _ = spec.wanted(gradient, residual)
    assert same(whole[:-1], expected)
    assert same(votes, np.sign(expected).astype(np.int8))
    assert same(means[:-1], spec.mean_magnitudes(expected, shared))

    tallies = rng.integers(-ranks, ranks, size, tally, endpoint=True)
    if size:  # what a rank has that is not finite, and what has not come
        expected[rng.integers(size)] = np.inf
        expected[rng.integers(size)] = np.nan
        means[rng.integers(len(means) - 1)] = np.nan
    for before in (None, residual):
        left, result = room(size, dtype), room(size, dtype)
        left[:-1] = expected
        kernels.settle_votes(
            left[:-1],
            before,
            means=means[:-1],
            tallies=tallies,
            result=result[:-1],
            shared=shared,
            ranks=ranks,
        )
        kept, mean = spec.settled(expected, before, means[:-1], tallies, shared, ranks)
        assert same(left[:-1], kept)
        assert same(result[:-1], mean) or np.array_equal(result[:-1], mean, equal_nan=True)
        assert left[-1] == result[-1] == GUARD
    result = room(size, dtype)
    kernels.majority(tallies, 0.0, result[:-1])
    assert same(result[:-1], np.sign(tallies).astype(dtype))
    kernels.majority(tallies, np.nan, result[:-1])
    assert np.isnan(result[:-1]).all()
    assert result[-1] == GUARD


def test_memory_comes_back_only_when_nobody_has_it() -> None:
    spare = CopyPool()
    size = 1 << 17
    one = kernels.lend(spare, size, np.dtype(np.float32))
    view, address = one[5:].reshape(-1, 1), one.ctypes.data
    del one
    other = kernels.lend(spare, size, np.dtype(np.float32))
    assert not np.shares_memory(other, view)
    del view
    assert kernels.lend(spare, size, np.dtype(np.float32)).ctypes.data == address
