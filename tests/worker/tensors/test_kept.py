# SPDX-License-Identifier: Apache-2.0
"""Memory of copies that are not needed any more serves the next ones, and only then."""

from __future__ import annotations

import numpy as np
import pytest
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.kept import HEARTBEATS, LIMIT, Spare

LANES = 256
FLOATS = np.dtype(np.float32)


def address(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> int:
    return int(rows.ctypes.data)


def test_memory_serves_the_next_copy_when_nobody_has_the_first_one() -> None:
    spare = Spare()
    first = spare.take(1000, LANES, FLOATS)
    place = address(first.rows)
    second = spare.take(1000, LANES, FLOATS)
    assert address(second.rows) != place
    assert spare.nbytes == 0
    del first
    assert spare.nbytes == 1000 * LANES * 4
    third = spare.take(900, LANES, FLOATS)
    assert third.rows.shape == (900, LANES)
    assert address(third.rows) == place


def test_memory_of_more_than_twice_the_size_is_left_for_a_larger_copy() -> None:
    spare = Spare()
    large = spare.take(3000, LANES, FLOATS)
    place = address(large.rows)
    del large
    assert address(spare.take(1000, LANES, FLOATS).rows) != place
    assert address(spare.take(2000, LANES, FLOATS).rows) == place


def test_small_copies_leave_nothing() -> None:
    spare = Spare()
    spare.take(10, LANES, FLOATS)
    assert spare.nbytes == 0


def test_memory_that_nobody_asks_for_goes_after_a_while() -> None:
    spare = Spare()
    spare.take(100_000, LANES, FLOATS)
    for _ in range(50):
        spare.take(10, LANES, FLOATS)
    assert spare.nbytes == 0


def test_the_oldest_memory_goes_beyond_the_limit() -> None:
    spare = Spare()
    blocks = LIMIT * 3 // 8 // (LANES * 4)  # two fit
    copies = [spare.take(blocks, LANES, FLOATS) for _ in range(3)]
    places = [address(copy.rows) for copy in copies]
    while copies:
        copies.pop(0)
        assert spare.nbytes <= LIMIT
    left = [spare.take(blocks, LANES, FLOATS) for _ in range(2)]
    assert {address(copy.rows) for copy in left} == set(places[1:])


def test_memory_without_a_use_goes_by_heartbeats() -> None:
    spare = Spare()
    spare.take(1000, LANES, FLOATS)
    for _ in range(HEARTBEATS - 1):
        spare.beat()
    place = address(spare.take(1000, LANES, FLOATS).rows)  # a use, from which it counts again
    for _ in range(HEARTBEATS - 1):
        spare.beat()
    again = spare.take(1000, LANES, FLOATS)
    assert address(again.rows) == place
    del again
    for _ in range(HEARTBEATS):
        spare.beat()
    assert spare.nbytes == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int8])
@pytest.mark.parametrize("size", [0, 1, LANES, 5 * LANES + 7, 40 * LANES])
def test_a_copy_is_what_the_array_holds(
    rng: np.random.Generator, dtype: type[np.generic], size: int
) -> None:
    array = rng.integers(-100, 100, size).astype(dtype)
    blocks = Blocks(array, LANES)
    expected = np.zeros(len(blocks) * LANES, dtype)
    expected[:size] = array
    kept = Spare().take(len(blocks), LANES, np.dtype(dtype))
    measured = blocks.measure(kept.rows)
    assert np.array_equal(kept.rows.reshape(-1), expected)
    for one, other in zip(measured, blocks.measure(), strict=True):
        assert np.array_equal(one, other)
