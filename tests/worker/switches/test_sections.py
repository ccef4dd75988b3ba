# SPDX-License-Identifier: Apache-2.0
"""What a part of a collective reads and writes is what the whole one does there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from measured_blocks import measured
from p4reduce.tensors.blocks import Absent, Blocks, BlockSource, Pieces, RawBlocks
from p4reduce.tensors.noise import Noise
from p4reduce.tensors.sparse_blocks import Runs, SparseSums
from p4reduce.wire.calls import Call, CallPart
from p4reduce.wire.format import Format

LANES = 256
ALL = slice(None)


def dense(rng: np.random.Generator, size: int) -> Any:
    array = rng.standard_normal(size).astype(np.float32)
    for start in range(0, size, 5 * LANES):
        array[start : start + LANES] = 0
    return array


def runs(width: int) -> Callable[[np.random.Generator], BlockSource]:
    def make(rng: np.random.Generator) -> BlockSource:
        number = 40 if width == 1 else 12
        indices = np.sort(rng.choice(9000 // width, number, replace=False))
        values = rng.standard_normal((number, width)).astype(np.float32)
        return Runs(indices, values, 9000).source(LANES)

    return make


SOURCES: dict[str, Callable[[np.random.Generator], Any]] = {
    "whole blocks": lambda rng: Blocks(dense(rng, 40 * LANES), LANES),
    "a short block at the end": lambda rng: Blocks(dense(rng, 40 * LANES + 7), LANES),
    "bytes": lambda rng: RawBlocks(rng.integers(0, 9, 30_001, np.uint8)),
    "none": lambda rng: Absent(np.dtype(np.float32), 33),
    "pieces": lambda rng: Pieces(
        [
            Blocks(dense(rng, 700), LANES),
            Absent(np.dtype(np.float32), 5),
            Blocks(dense(rng, 0), LANES),
            Blocks(dense(rng, 3000), LANES),
        ]
    ),
    "single elements": runs(1),
    "rows": runs(300),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_section_of_a_source(kind: str, rng: np.random.Generator) -> None:
    whole = SOURCES[kind](rng)
    exponents, nonzero = measured(whole)
    for first, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        part = whole.section(first, stop)
        assert (len(part), part.dtype) == (stop - first, whole.dtype)
        of_part = measured(part)
        assert (of_part[0] == exponents[first:stop]).all()
        assert (of_part[1] == nonzero[first:stop]).all()
        there = np.flatnonzero(nonzero[first:stop])
        rows = np.full((2, len(there), LANES), 7, whole.dtype)
        whole.gather(there + first, rows[0])
        part.gather(there, rows[1])
        assert (rows[0] == rows[1]).all()


@pytest.mark.parametrize("columns", [ALL, slice(0, LANES // 2), slice(LANES // 2, LANES)])
def test_sections_of_a_target(columns: slice, rng: np.random.Generator) -> None:
    """Written to by sections or as a whole: the same array."""
    size = 20 * LANES + 7
    rows = rng.standard_normal((21, LANES)).astype(np.float32)[:, columns]
    arrays = np.zeros((2, size), np.float32)
    cut = int(rng.integers(1, 20))
    whole = Blocks(arrays[0], LANES)
    halves = [Blocks(arrays[1], LANES).section(*ends) for ends in ((0, cut), (cut, 21))]
    whole.scatter(np.arange(21), rows, columns)
    halves[1].scatter(np.arange(21 - cut), rows[cut:], columns)
    halves[0].scatter(np.arange(cut), rows[:cut], columns)
    assert (arrays[0] == arrays[1]).all()
    mask = np.isin(np.arange(21), (3, 20))
    for target, part in ((whole, mask), (halves[0], mask[:cut]), (halves[1], mask[cut:])):
        target.fill(part, np.nan)
    assert np.array_equal(arrays[0], arrays[1], equal_nan=True)


def test_sections_of_sparse_sums(rng: np.random.Generator) -> None:
    size, sums = 20 * LANES, [SparseSums(np.dtype(np.float32), 20 * LANES, LANES) for _ in "12"]
    rows = dense(rng, size).reshape(20, LANES)
    sums[0].scatter(np.arange(20), rows, ALL)
    mask = np.isin(np.arange(20), (4, 17))
    sums[0].fill(np.flatnonzero(mask), np.nan)
    for first, stop in ((11, 20), (0, 11)):
        part = sums[1].section(0, 20).section(first, stop)
        part.scatter(np.arange(stop - first), rows[first:stop], ALL)
        part.fill(mask[first:stop], np.nan)
    for one, other in zip(sums[0].elements(), sums[1].elements(), strict=True):
        assert np.array_equal(one, other, equal_nan=True)


@pytest.mark.parametrize("lanes", [512, 1024])
def test_random_numbers_are_those_of_the_whole(lanes: int, rng: np.random.Generator) -> None:
    whole, first = Noise(5, 1, 2), int(rng.integers(1 << 22))
    blocks = rng.integers(0, 1000, 20)
    assert (
        whole.since(first, lanes).rows(blocks, lanes) == whole.rows(blocks + first, lanes)
    ).all()


def test_a_part_is_part_of_the_tag_and_says_where_it_is() -> None:
    whole = Call("allreduce", "float32", 100_000)
    parts = [Call("allreduce", "float32", 100_000, part=CallPart(1, 2, at)) for at in (195, 196)]
    tags = {call.fingerprint(0, Format.INT32) for call in (whole, *parts)}
    assert len(tags) == 3
    assert parts[0].describe(4) == "allreduce 4 (100,000 float32, part 2 of 2)"
    assert parts[0].locate(2, LANES) == whole.locate(197, LANES)
