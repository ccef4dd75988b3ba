# SPDX-License-Identifier: Apache-2.0
"""Memory of copies that are not needed any more serves the next ones, and only then."""

from __future__ import annotations

import numpy as np
from p4reduce.tensors.copy_pool import LIMIT, CopyPool

LANES = 256
FLOATS = np.dtype(np.float32)


def address(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> int:
    return int(rows.ctypes.data)


def test_memory_serves_the_next_copy_when_nobody_has_the_first_one() -> None:
    copy_pool = CopyPool()
    first = copy_pool.take(1000, LANES, FLOATS)
    place = address(first.rows)
    second = copy_pool.take(1000, LANES, FLOATS)
    assert address(second.rows) != place
    assert copy_pool.nbytes == 0
    del first
    assert copy_pool.nbytes == 1000 * LANES * 4
    third = copy_pool.take(900, LANES, FLOATS)
    assert third.rows.shape == (900, LANES)
    assert address(third.rows) == place


def test_memory_of_more_than_twice_the_size_is_left_for_a_larger_copy() -> None:
    copy_pool = CopyPool()
    large = copy_pool.take(3000, LANES, FLOATS)
    place = address(large.rows)
    del large
    assert address(copy_pool.take(1000, LANES, FLOATS).rows) != place
    assert address(copy_pool.take(2000, LANES, FLOATS).rows) == place


def test_small_copies_leave_nothing() -> None:
    copy_pool = CopyPool()
    copy_pool.take(10, LANES, FLOATS)
    assert copy_pool.nbytes == 0


def test_memory_that_nobody_asks_for_goes_after_a_while() -> None:
    copy_pool = CopyPool()
    copy_pool.take(100_000, LANES, FLOATS)
    for _ in range(50):
        copy_pool.take(10, LANES, FLOATS)
    assert copy_pool.nbytes == 0


def test_the_oldest_memory_goes_beyond_the_limit() -> None:
    copy_pool = CopyPool()
    blocks = LIMIT * 3 // 8 // (LANES * 4)  # two fit
    copies = [copy_pool.take(blocks, LANES, FLOATS) for _ in range(3)]
    places = [address(copy.rows) for copy in copies]
    while copies:
        copies.pop(0)
        assert copy_pool.nbytes <= LIMIT
    left = [copy_pool.take(blocks, LANES, FLOATS) for _ in range(2)]
    assert {address(copy.rows) for copy in left} == set(places[1:])
