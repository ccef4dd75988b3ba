# SPDX-License-Identifier: Apache-2.0
"""CAT beside gradient descent: the same with one block, fewer blocks sent with many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from p4reduce.methods.cat import cat
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import InProcess, outcomes_of, run
from p4reduce.methods.problems import LeastSquares, split_evenly
from worker_system import System

RANKS, BLOCK = 3, 256


def tasks(rng: np.random.Generator, blocks: int) -> tuple[list[Any], float, Any]:
    """Each rank's problem, 1/L and the minimum. Blocks of features differ in scale by 2 each."""
    size = blocks * BLOCK
    features = rng.standard_normal((RANKS * 60, size)) * np.repeat(0.5 ** np.arange(blocks), BLOCK)
    truth = rng.standard_normal(size)
    parts = split_evenly(features, features @ truth, RANKS)
    return [LeastSquares(*part) for part in parts], 1 / np.linalg.norm(features, 2) ** 2, truth


@pytest.mark.parametrize("compression", ["cat:own", "cat:paper"])
def test_one_block_is_gradient_descent(rng: np.random.Generator, compression: str) -> None:
    problems, rate, _ = tasks(rng, 1)
    settings: dict[str, Any] = {"rate": rate, "steps": 20}
    wanted = run(RANKS, lambda comm: gd(comm, problems[comm.rank], **settings).model)[0]
    found = run(
        RANKS,
        lambda comm: cat(comm, problems[comm.rank], compression=compression, **settings).model,
    )
    for model in found:
        np.testing.assert_allclose(model, wanted, rtol=1e-12)


class Counting:
    """Counts blocks that are not zeros."""

    def __init__(self, comm: InProcess) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.blocks = 0

    def allreduce(self, array: Any, **options: Any) -> Any:
        whole = np.zeros(-(-array.size // BLOCK) * BLOCK, array.dtype)
        whole[: array.size] = array.reshape(-1)
        self.blocks += int(whole.reshape(-1, BLOCK).any(axis=1).sum())
        return self._comm.allreduce(array, **options)


def blocks_sent(method: Any, problems: list[Any], rate: float, **more: Any) -> int:
    """Of all ranks, until the objective is a hundredth of what it was."""
    start = sum(problem.value(np.zeros(problem.size)) for problem in problems)

    def work(comm: InProcess) -> int:
        def watch(_step: int, model: Any) -> bool:
            return sum(comm.confer(problems[comm.rank].value(model))) < 0.01 * start

        counting = Counting(comm)
        method(counting, problems[comm.rank], rate=rate, steps=400, watch=watch, **more)
        return counting.blocks

    return sum(run(RANKS, work))


@pytest.mark.parametrize("compression", ["cat", "cat:own"])
def test_fewer_blocks_to_the_same_objective(rng: np.random.Generator, compression: str) -> None:
    problems, rate, _ = tasks(rng, 4)
    dense = blocks_sent(gd, problems, rate)
    assert blocks_sent(cat, problems, rate, compression=compression, bandwidth=1e5) < 0.8 * dense


def test_over_the_switch(system: System, rng: np.random.Generator) -> None:
    problems, rate, _ = tasks(rng, 3)
    settings: dict[str, Any] = {"rate": rate, "steps": 15}

    def work(comm: Any) -> Any:
        return cat(comm, problems[comm.rank], **settings).model

    wanted = run(RANKS, work)[0]
    for model in system.run(RANKS, work):
        np.testing.assert_allclose(model, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compression": "dog"}, "cat: rank 1: compression 'dog': no compressor has that name"),
        ({"compression": "cat/int8"}, "rank 1: compression='cat/int8': without narrow lanes"),
        ({"bandwidth": 0.0}, "rank 1: bandwidth=0: a positive number is needed"),
        ({"rate": float("nan")}, "rank 1: rate=nan: a positive number is needed"),
        ({"seed": 3}, "rank 0 has seed = 0, rank 1 has 3; all ranks need the same"),
    ],
)
def test_bad_settings_are_an_error_on_all(
    rng: np.random.Generator, change: dict[str, Any], says: str
) -> None:
    problems, rate, _ = tasks(rng, 1)

    def work(comm: Any) -> Any:
        settings: dict[str, Any] = {"rate": rate, "steps": 2}
        return cat(comm, problems[comm.rank], **{**settings, **(change if comm.rank == 1 else {})})

    errors = outcomes_of(RANKS, work)
    assert {type(error) for error in errors} == {ValueError}
    assert all(says in str(error) for error in errors), errors
