# SPDX-License-Identifier: Apache-2.0
"""Operators whose messages are sums: PowerSGD's factors and GradiVeQ's projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import Compressor, GradiVeQ, PowerSGD, compressor_by_name

Array = npt.NDArray[Any]
RANKS = 4


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every run."""
    return np.random.default_rng(32)


def ranks_of(name: str) -> list[Compressor]:
    return [compressor_by_name(name, RANKS) for _ in range(RANKS)]


def reduced(ranks: list[Compressor], gradients: list[Array]) -> tuple[Array, int]:
    """One step by hand, as `CompressedAllreduce` does it."""
    proposals = [one.propose("w", given) for one, given in zip(ranks, gradients, strict=True)]
    agreed = None
    if proposals[0] is not None:
        agreed = np.sum(np.array(proposals, dtype=np.float64), axis=0).astype(np.float32)
    pairs = zip(ranks, gradients, strict=True)
    sent = [one.compress("w", given, agreed) for one, given in pairs]
    total = np.sum([one.values.astype(np.float64) for one in sent], axis=0).astype(np.float32)
    results = [one.decompress("w", total) for one in ranks]
    assert all(one.tobytes() == results[0].tobytes() for one in results)
    return results[0], sent[0].values.size


def test_powersgd_of_matrices_of_its_rank_is_exact(rng: np.random.Generator) -> None:
    left = rng.standard_normal((60, 2))
    ranks = ranks_of("powersgd:2")
    for _ in range(3):
        given = [(left @ rng.standard_normal((2, 90))).astype(np.float32) for _ in range(RANKS)]
        total, size = reduced(ranks, given)
        assert total.shape == (60, 90)
        assert size == 2 * 90
        assert np.abs(total - np.sum(given, axis=0)).max() < 1e-3


def test_gradiveq_of_slices_in_a_small_space_is_exact(rng: np.random.Generator) -> None:
    space = rng.standard_normal((8, 256))
    ranks = ranks_of("gradiveq:8")
    sizes = []
    for _ in range(25):
        given = [
            (rng.standard_normal((10, 8)) @ space).astype(np.float32).ravel() for _ in range(RANKS)
        ]
        total, size = reduced(ranks, given)
        sizes.append(size)
        assert np.abs(total - np.sum(given, axis=0)).max() < 1e-3
    assert sizes == [2560, *[80] * 19, 2560, *[80] * 4]


@pytest.mark.parametrize("name", ["powersgd:1", "powersgd:3", "gradiveq:4"])
def test_nothing_is_lost_with_feedback(name: str, rng: np.random.Generator) -> None:
    ranks = ranks_of(name)
    shapes = [(20, 30), (30,), (7, 5, 11), (2, 2)]
    size = sum(int(np.prod(shape)) for shape in shapes)
    for one in ranks:
        one.describe("w", shapes)
    given_in_all, come_out = np.zeros(size), np.zeros(size)
    for _ in range(6):
        scale = np.repeat(10.0 ** rng.integers(-6, 3, size // 10 + 1), 10)[:size]
        given = [(rng.standard_normal(size) * scale).astype(np.float32) for _ in range(RANKS)]
        given_in_all += np.sum(given, axis=0)
        come_out += reduced(ranks, given)[0]
    kept = np.sum([one.states["w"].residual for one in ranks], axis=0)
    assert np.abs(come_out + kept - given_in_all).max() < 1e-5 * np.abs(given_in_all).max()


@pytest.mark.parametrize("name", ["powersgd:1", "gradiveq:4"])
def test_a_gradient_that_is_not_finite(name: str, rng: np.random.Generator) -> None:
    ranks, other = ranks_of(name), ranks_of(name)
    for step in range(4):
        given = [rng.standard_normal((20, 40)).astype(np.float32) for _ in range(RANKS)]
        if step == 2:
            broken = [one.copy() for one in given]
            broken[1][3, 3] = np.inf
            total, _ = reduced(ranks, broken)
            assert np.isnan(total).all()
            # What the others had is not lost, and the broken one's residual is the one before.
            given[1][:] = 0
            kept = [one.states["w"].residual for one in ranks]
            for n, one in enumerate(other):
                one.states["w"].residual = one.states["w"].residual + given[n]
                assert np.allclose(kept[n], one.states["w"].residual, atol=1e-6)
            continue
        total, _ = reduced(ranks, given)
        assert np.isfinite(total).all()
        if step < 2:
            reduced(other, given)


def test_small_segments_keep_their_bits_in_narrow_lanes(rng: np.random.Generator) -> None:
    """A message has numbers of 1 and of 1e-6; a block of lanes has one exponent."""
    ranks = ranks_of("powersgd:1/int16")
    for one in ranks:
        one.describe("w", [(30, 40), (30,)])
    small = slice(1200, 1230)
    for _ in range(2):
        given = [rng.standard_normal(1230).astype(np.float32) for _ in range(RANKS)]
        for one in given:
            one[small] *= 1e-6
        reduced(ranks, given)
    proposals = [one.propose("w", mine) for one, mine in zip(ranks, given, strict=True)]
    agreed = np.sum(proposals, axis=0)
    sent = ranks[0].compress("w", given[0], agreed)
    assert np.abs(sent.values[-30:]).max() > 0.1
    assert sent.lane_bits == 16


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("powersgd:0", "must be 1 or more"),
        ("powersgd:1.5", "a whole number of columns"),
        ("powersgd", "needs a number"),
        ("gradiveq:300", "1 to 256 are needed"),
        ("gradiveq:1.5", "whole components"),
    ],
)
def test_wrong_names(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        compressor_by_name(name, RANKS)


def test_parts_have_to_add_up() -> None:
    one = PowerSGD(rank=1)
    one.describe("w", [(3, 4)])
    with pytest.raises(ValueError, match="13 elements"):
        one.propose("w", np.ones(13, np.float32))
    with pytest.raises(ValueError, match="2 or more"):
        GradiVeQ(period=1)
