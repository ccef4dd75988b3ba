# SPDX-License-Identifier: Apache-2.0
"""Indices as Elias–Fano codes or as marks, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from p4reduce.tensors.index_codes import code_bytes, decode, encode, marked, marks_of


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


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 63, 1000])
def test_summed_marks_name_the_indices_of_all_ranks(rng: np.random.Generator, ranks: int) -> None:
    size = int(rng.integers(2, 30_000))
    own = [np.unique(rng.integers(0, size, rng.integers(0, 200))) for _ in range(ranks - 1)]
    own.append(np.array([0, size - 1]))
    total = np.sum([marks_of(one, size, ranks) for one in own], axis=0, dtype=np.int64)
    assert np.max(total) < 2**31
    found = marked(total.astype(np.int32), ranks)
    assert found.tolist() == np.unique(np.concatenate(own)).tolist()


def test_all_ranks_with_an_index_do_not_reach_the_next_ones_marks() -> None:
    for ranks in (2, 3, 7, 8):
        every = np.arange(100)
        total = marks_of(every, 101, ranks) * ranks
        assert marked(total, ranks).tolist() == every.tolist()
