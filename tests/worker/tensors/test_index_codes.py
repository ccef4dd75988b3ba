# SPDX-License-Identifier: Apache-2.0
"""Indices as Elias–Fano codes, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from p4reduce.tensors.index_codes import code_bytes, decode, encode


def test_indices_come_back(rng: np.random.Generator) -> None:
    for _ in range(200):
        size = int(rng.integers(1, 1 << int(rng.integers(1, 21))))
        count = int(rng.integers(0, min(size, 3000) + 1))
        indices = np.sort(rng.choice(size, count, replace=False))
        code = encode(indices, size)
        assert len(code) == code_bytes(size, count)
        assert np.array_equal(decode(code, size, count), indices), (size, count)


@pytest.mark.parametrize(
    ("size", "indices"),
    [(1, [0]), (1 << 40, [0, (1 << 40) - 1]), (1 << 20, [(1 << 20) - 1]), (5, range(5))],
)
def test_corners(size: int, indices: list[int]) -> None:
    places = np.array(indices, np.int64)
    assert np.array_equal(decode(encode(places, size), size, len(places)), places)


@pytest.mark.parametrize("count", [1, 17, 1049, 10_000, 1 << 19, 1 << 20])
def test_length_is_what_is_documented(count: int) -> None:
    size = 1 << 20
    assert code_bytes(size, count) <= (2 + math.log2(size / count)) * count / 8 + 2
