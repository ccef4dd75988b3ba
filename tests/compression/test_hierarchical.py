# SPDX-License-Identifier: Apache-2.0
"""Top-k in two levels over a tree of embedded switches, beside the same in numpy."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from hierarchical_rank import BLOCKS, DENSITY, NAN_AT, NAN_STEP, SIZE, STEPS, gradient

pytestmark = pytest.mark.long  # a tree of switches, and all its ranks' steps
LEAVES, RANKS = 2, 4  # ranks 0, 1 and 2, 3
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank left."""
    directory = tmp_path_factory.mktemp("ranks")
    worker = Path(__file__).with_name("hierarchical_rank.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "p4reduce_lab",
            "exec",
            "--switch",
            "embedded",
            "--tree",
            f"{LEAVES}x{RANKS // LEAVES}",
            "--",
            sys.executable,
            worker,
            directory,
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [np.load(directory / f"rank{rank}.npz") for rank in range(RANKS)]


def largest(values: Array, unit: int) -> Array:
    """Which elements are sent: of most magnitude, or blocks of most energy."""
    if unit == 1:
        return np.argsort(-np.abs(values))[: math.ceil(DENSITY * len(values))]
    blocks = np.array_split(np.arange(len(values)), range(unit, len(values), unit))
    blocks.sort(key=lambda block: -float((values[block] ** 2).sum()))
    return np.concatenate(blocks[: math.ceil(BLOCKS * len(blocks))])


def emulated(
    gradients: Callable[[int, int], Array],
    steps: int = STEPS,
    mean: bool = False,
    unit: int = 1,
) -> list[Array]:
    """The method of Shi et al. in one process: the sums of each step.

    Args:
        gradients: of a rank in a step, flat.
        unit: elements that are chosen together.
    """
    share = RANKS // LEAVES
    shards = np.array_split(np.arange(SIZE), share)
    kept = {
        (leaf, n): 0 * gradients(0, 0)[shards[n]] for leaf in range(LEAVES) for n in range(share)
    }
    sums = []
    for step in range(steps):
        total = np.zeros(SIZE)
        for leaf in range(LEAVES):
            own = [gradients(leaf * share + rank, step) for rank in range(share)]
            whole = sum(one.astype(np.float64) for one in own) / (share if mean else 1)
            for n, places in enumerate(shards):
                wanted = kept[leaf, n] + whole[places]
                chosen = largest(wanted, unit)
                total[places[chosen]] += wanted[chosen] / (LEAVES if mean else 1)
                wanted[chosen] = 0
                kept[leaf, n] = wanted
        sums.append(total)
    return sums


def test_each_rank_knows_its_leaf(saved: list[Any]) -> None:
    assert [one["leaf"].tolist() for one in saved] == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize("kind", ["whole", "int32"])
def test_sums_are_those_of_numpy_bit_for_bit(saved: list[Any], kind: str) -> None:
    wanted = emulated(lambda rank, step: gradient(kind, rank, step))
    for one in saved:
        assert np.array_equal(one[kind], np.array(wanted)), kind
        assert np.array_equal(one["again"], wanted[0])
    assert 0.9 < np.count_nonzero(wanted[0]) / (SIZE * DENSITY) < 2


def test_blocks_are_those_of_numpy_bit_for_bit(saved: list[Any]) -> None:
    wanted = emulated(lambda rank, step: gradient("whole", rank, step), unit=256)
    for one in saved:
        assert np.array_equal(one["blocks"], np.array(wanted))


def test_a_block_that_is_not_finite_is_nan(saved: list[Any]) -> None:
    for one in saved:
        block = (np.arange(SIZE) - 1501) // 256 == (NAN_AT - 1501) // 256
        assert block[NAN_AT]
        assert np.array_equal(np.isnan(one["broken"]), block)


def test_means_of_floats_are_within_the_bound(saved: list[Any]) -> None:
    wanted = np.array(emulated(lambda rank, step: gradient("float", rank, step)[:, 0], mean=True))
    assert saved[0]["float"].shape == (STEPS, SIZE, 1)
    assert all(one["float"].tobytes() == saved[0]["float"].tobytes() for one in saved)
    most = max(np.abs(gradient("float", r, s)).max() for r in range(RANKS) for s in range(STEPS))
    # What a step leaves over carries its rounding into the next ones.
    bound = STEPS * (2 * p4reduce.error_bound(STEPS * float(most), 2) + 2**-23 * float(most))
    assert np.abs(saved[0]["float"][:, :, 0] - wanted).max() <= bound


def test_a_shard_that_is_not_finite_is_nan_for_one_step(saved: list[Any]) -> None:
    second = np.arange(SIZE) >= np.array_split(np.arange(SIZE), 2)[1][0]
    assert second[NAN_AT]
    for one in saved:
        spoilt = one["spoilt"]
        for step in range(STEPS):
            nan = np.isnan(spoilt[step])
            assert np.array_equal(nan, second & (step == NAN_STEP))
        assert np.array_equal(spoilt[:, ~second], one["whole"][:, ~second])
        assert np.array_equal(spoilt[0], one["whole"][0])


def test_a_tensor_that_is_smaller_than_a_leaf(saved: list[Any]) -> None:
    assert [one["tiny"].tolist() for one in saved] == [[4.0]] * RANKS


def test_what_is_refused(saved: list[Any]) -> None:
    for one in saved:
        size, mean, leaf = one["refused"].tolist()
        assert "but its residual has" in size
        assert "has the residual of a sum, not of a mean" in mean
        assert "rank 0; ranks 1 to 3" in leaf
