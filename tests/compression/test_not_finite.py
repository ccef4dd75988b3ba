# SPDX-License-Identifier: Apache-2.0
"""NaN, infinity, no elements and what is no array: a compressed all-reduce does as a plain one."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.compression import (
    Agreement,
    CompressedAllreduce,
    RandomK,
    TopK,
    compressor_by_name,
    nonzero_blocks,
)
from p4reduce.compression.memory import MemoryState
from ranks_here import EqualRanks, exchange

Array = npt.NDArray[Any]
NAMES = (
    "none",
    "int16",
    "int8",
    "topk:0.1",
    "topk:0.9",
    "topk:0.1/int8",
    "mstopk:0.1",
    "randomk:0.2",
    "threshold:1",
    "cat",
    "cat:level",
    "cat:own",
    "cat:paper",
    "cat:paper,level",
    "cat:paper,blocks",
    "cat:signs",
    "cat:signs,level",
    "cat:stochastic",
    "cat/int8",
)
RANKS = 3
SIZE = 1024 * 20 + 17
BAD_STEP, BAD_RANK = 3, 1


def gradient_of(rank: int, step: int) -> Array:
    """Blocks of very different size; not finite at two places in one step of one rank."""
    random = np.random.default_rng([rank, step])
    scale = np.repeat(random.lognormal(0, 1.5, -(-SIZE // 256)), 256)[:SIZE]
    values = (random.standard_normal(SIZE) * scale).astype(np.float32)
    if (rank, step) == (BAD_RANK, BAD_STEP):
        values[300], values[5000] = np.nan, -np.inf
    return values


@pytest.mark.parametrize("name", NAMES)
def test_nan_on_one_rank_spoils_its_blocks_of_that_step_and_nothing_else(name: str) -> None:
    ranks = [compressor_by_name(name, RANKS) for _ in range(RANKS)]
    lanes, agreement = ranks[0].lanes, getattr(ranks[0], "agreement", None)
    bad = np.zeros(SIZE, dtype=np.bool_)
    for at in (300, 5000):
        bad[at // lanes * lanes : (at // lanes + 1) * lanes] = True
    given, received = np.zeros(SIZE), np.zeros(SIZE)
    for step in range(8):
        gradients = [gradient_of(rank, step) for rank in range(RANKS)]
        sent, total = exchange(ranks, gradients)
        spoilt = step == BAD_STEP
        assert (np.isnan(total) == (bad & spoilt)).all(), step
        received += np.where(np.isnan(total), 0, total)
        for rank, gradient in enumerate(gradients):
            given += np.where(bad, 0, gradient) if spoilt and rank == BAD_RANK else gradient
        others = [one for rank, one in enumerate(sent) if not spoilt or rank != BAD_RANK]
        same_blocks = isinstance(ranks[0], RandomK) and not others[0].dense
        if same_blocks or agreement is Agreement.BLOCKS:
            masks = [nonzero_blocks(one.values, lanes) for one in others]
            assert all((mask == masks[0]).all() for mask in masks), "out of step"
        if agreement is Agreement.LEVEL:
            assert len({one.level for one in others if not one.dense}) <= 1
    if ranks[0].feedback:
        waiting = np.sum([one.states["w"].residual for one in ranks], axis=0)
        assert np.abs(received + waiting - given).max() < 1e-5 * np.abs(given).max()
    elif name == "none":
        kept = ~bad
        assert np.allclose(received[kept], given[kept], rtol=1e-5, atol=1e-5)
    for one in ranks:
        state = one.states["w"]
        if isinstance(state, MemoryState):
            assert np.isfinite(astuple(state.own)).all()
            assert state.own.energy > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_is_never_finite_keeps_the_others_from_nothing(name: str) -> None:
    """From the first step on; its other blocks are those of a plain all-reduce."""
    ranks = [compressor_by_name(name, RANKS) for _ in range(RANKS)]
    broken = np.full(SIZE, np.inf, dtype=np.float32)
    for step in range(3):
        gradients = [gradient_of(0, step), broken, gradient_of(2, step)]
        sent, total = exchange(ranks, gradients)
        assert np.isnan(total).all()
        assert sent[1].dense
        assert sent[0].level > 0
    sent, total = exchange(ranks, [gradient_of(rank, 5) for rank in range(RANKS)])
    assert np.isfinite(total).all()
    assert all(one.level > 0 for one in sent)


def test_all_ranks_may_be_broken_at_once() -> None:
    for name in NAMES:
        ranks = [compressor_by_name(name, RANKS) for _ in range(RANKS)]
        broken = np.full(SIZE, np.nan, dtype=np.float32)
        assert np.isnan(exchange(ranks, [broken] * RANKS)[1]).all()
        assert np.isfinite(exchange(ranks, [gradient_of(0, 0)] * RANKS)[1]).all()


def test_a_residual_that_does_not_fit_beside_the_gradient_waits() -> None:
    """In float16; the gradient alone is sent whole, and nothing becomes infinite."""
    compressor = TopK(density=0.5)
    rows = np.repeat([40_000, 30_000], 256).astype(np.float16)
    compressor.compress("w", rows)
    again = compressor.compress("w", np.full(512, 40_000, dtype=np.float16))
    assert (again.values == 40_000).all()
    residual = compressor.states["w"].residual
    assert residual is not None
    assert (residual[256:] == 30_000).all()


@pytest.mark.parametrize("scheme", ["signs", "stochastic"])
def test_factors_that_a_float16_cannot_hold_make_nothing_infinite(scheme: str) -> None:
    gradient = np.linspace(-200, 200, 256 * 2000).astype(np.float16)
    sent = compressor_by_name(f"cat:{scheme}", 1).compress("w", gradient)
    assert np.isfinite(sent.values).all()
    assert np.abs(sent.values).max() <= 201


@pytest.mark.parametrize("name", NAMES)
def test_a_mean_that_fits_its_dtype_is_one_though_the_sum_does_not(name: str) -> None:
    reduce = CompressedAllreduce(EqualRanks(), compressor_by_name(name, 4))
    gradient = np.full(SIZE, 20_000, dtype=np.float16)
    mean = reduce.mean(gradient, "w")
    assert mean.dtype == np.float16
    assert np.isfinite(mean).all()
    if reduce.latest["w"].blocks:
        assert mean.max() == pytest.approx(20_000, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_without_elements_the_ranks_only_meet(name: str, shape: tuple[int, ...]) -> None:
    communicator = EqualRanks()
    reduce = CompressedAllreduce(communicator, compressor_by_name(name, 4))
    for _ in range(2):
        mean = reduce.mean(np.empty(shape, dtype=np.float32), "w")
        assert mean.shape == shape
    assert len(communicator.names) == 2
    sent = reduce.latest["w"]
    assert (sent.level, sent.units, sent.blocks, sent.total_blocks) == (0, 0, 0, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("given", "what"),
    [([1.0], "a list"), (np.float32(1), "a float32"), (np.ones(3, np.int32), "of int32")],
)
def test_what_is_no_array_of_floats_is_named(name: str, given: Any, what: str) -> None:
    reduce = CompressedAllreduce(EqualRanks(), compressor_by_name(name, 4))
    with pytest.raises(TypeError, match=f"tensor 'w' is {what}"):
        reduce.mean(given, "w")
