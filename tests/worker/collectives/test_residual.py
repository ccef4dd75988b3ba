# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what rounding to narrow lanes leaves out comes with the next step's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from worker_system import System

Array = npt.NDArray[Any]

WORLD = 3
# Blocks of zeros on all ranks and on one, numbers of very different sizes, a last block in part.
SIZE = 5 * 2048 + 77


def gradients(rng: np.random.Generator, dtype: type) -> list[Array]:
    scales = np.repeat(np.exp2(rng.uniform(-8, 8, -(-SIZE // 100))), 100)[:SIZE]
    ranks = [(rng.standard_normal(SIZE) * scales).astype(dtype) for _ in range(WORLD)]
    for array in ranks:
        array[2048:4096] = 0
    ranks[0][4096:6144] = 0
    return ranks


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("precision", ["int16", "int8"])
def test_nothing_is_lost_over_the_steps(
    system: System, rng: np.random.Generator, dtype: type, precision: str
) -> None:
    """All means and what still waits on the ranks are together what all gradients are."""
    steps = [gradients(rng, dtype) for _ in range(5)]

    def work(comm: p4reduce.Communicator) -> tuple[Array, Array]:
        total, residual = np.zeros(SIZE), np.zeros(SIZE, dtype)
        for step in steps:
            mine = step[comm.rank].copy()
            mean = comm.allreduce(mine, "mean", precision=precision, residual=residual)
            assert np.array_equal(mine, step[comm.rank])
            total += mean
        return total, residual

    results = system.run(WORLD, work)
    exact = np.sum([np.mean(np.array(step, np.float64), axis=0) for step in steps], axis=0)
    waiting = np.mean([np.asarray(residual, np.float64) for _, residual in results], axis=0)
    largest = max(float(np.abs(step).max()) for step in steps)
    for total, _ in results:
        assert np.array_equal(total, results[0][0])
        # Sums and residuals are rounded to the dtype in each step.
        tolerance = 20 * float(np.finfo(dtype).eps) * largest
        assert np.allclose(total + waiting, exact, rtol=0, atol=tolerance)
    assert all(residual.any() for _, residual in results)
    assert not any(residual[2048:4096].any() for _, residual in results), (
        "nothing was rounded there"
    )


def test_in_place_and_asynchronous(system: System, rng: np.random.Generator) -> None:
    """The same seed gives the same mean and residual, wherever the result goes."""
    ranks = gradients(rng, np.float32)

    def work(comm: p4reduce.Communicator) -> list[tuple[Array, Array]]:
        results = []
        for in_place in (False, True):
            array, residual = ranks[comm.rank].copy(), np.full(SIZE, 2.0**-9, np.float32)
            handle = comm.allreduce_async(
                array,
                "mean",
                out=array if in_place else None,
                precision="int8",
                seed=7,
                residual=residual,
            )
            results.append((handle.wait(), residual))
        return results

    for first, second in system.run(WORLD, work):
        # Other calls draw other noise: only what the numbers are off by is the same.
        assert np.abs(first[1]).max() <= np.abs(ranks).max() * 2 / (127 // WORLD)
        exact = np.mean(ranks, axis=0) + np.float32(2.0**-9)
        assert np.allclose(first[0], exact, atol=4 * np.abs(ranks).max() / (127 // WORLD))
        assert np.allclose(second[0], exact, atol=4 * np.abs(ranks).max() / (127 // WORLD))


def test_a_block_that_is_not_finite_waits(system: System, rng: np.random.Generator) -> None:
    """On the ranks where it is finite; where it is not, its finite numbers do."""
    ranks = [rng.standard_normal(3 * 1024).astype(np.float32) for _ in range(WORLD)]
    ranks[1][1024 + 5] = np.nan

    def work(comm: p4reduce.Communicator) -> tuple[Array, Array]:
        residual = np.zeros(3 * 1024, np.float32)
        mean = comm.allreduce(ranks[comm.rank], "mean", precision="int8", residual=residual)
        return mean, residual

    for rank, (mean, residual) in enumerate(system.run(WORLD, work)):
        assert np.isnan(mean[1024:2048]).all()
        assert np.isfinite(mean[:1024]).all()
        expected = np.nan_to_num(ranks[rank][1024:2048], nan=0)
        assert np.array_equal(residual[1024:2048], expected)


def test_one_rank(system: System, rng: np.random.Generator) -> None:
    array = rng.standard_normal(5000).astype(np.float32)
    array[3000] = np.inf

    def work(comm: p4reduce.Communicator) -> tuple[Array, Array]:
        residual = np.zeros(5000, np.float32)
        with comm.split(color=comm.rank) as alone:
            mean = alone.allreduce(array, "mean", precision="int8", residual=residual)
        return mean, residual

    for mean, residual in system.run(2, work):
        finite = np.isfinite(mean)
        assert np.allclose((mean + residual)[finite], array[finite], rtol=1e-6, atol=1e-6)
        expected = np.where(np.isfinite(array), array, 0)
        assert np.array_equal(residual[~finite], expected[~finite])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"precision": None}, ValueError, "residual needs floats with precision"),
    ({"residual": np.zeros(9, np.float32)}, ValueError, r"shape \(9,\)"),
    ({"residual": np.zeros(10)}, ValueError, "float64"),
    ({"residual": [0.0] * 10}, TypeError, "numpy array"),
    ({"residual": np.zeros(20, np.float32)[::2]}, ValueError, "residual has to be C-contiguous"),
    ({"residual": np.ma.zeros(10, np.float32)}, TypeError, "residual is a masked array"),
    ({"array": np.zeros(10, np.int8), "precision": "int4"}, ValueError, "needs floats"),
    ({"deadline": 1.0}, ValueError, "deadline"),
]


def test_what_does_not_fit(system: System) -> None:
    """It is refused, and the communicator stays usable."""

    def work(comm: p4reduce.Communicator) -> list[float]:
        for change, error, message in WRONG:
            given = {"array": np.zeros(10, np.float32), "precision": "int8"}
            given |= {"residual": np.zeros(10, np.float32), **change}
            with pytest.raises(error, match=message):
                comm.allreduce(given.pop("array"), "sum", **given)
        array = np.zeros(10, np.float32)
        with pytest.raises(ValueError, match="overlaps"):
            comm.allreduce(array, "mean", precision="int8", residual=array)
        total: list[float] = comm.allreduce(np.ones(3)).tolist()
        return total

    assert system.run(2, work) == [[2, 2, 2]] * 2
