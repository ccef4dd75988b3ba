# SPDX-License-Identifier: Apache-2.0
"""Gradient descent beside numpy's least squares; tasks beside finite differences and scipy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from p4reduce.methods.gd import best_momentum, gd
from p4reduce.methods.in_process import outcomes_of, run
from p4reduce.methods.problems import LeastSquares, Logistic, gadmm_synthetic, split_evenly
from scipy.optimize import minimize


@pytest.fixture
def rng() -> np.random.Generator:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("momentum", [False, True])
def test_the_closed_form(rng: np.random.Generator, momentum: bool) -> None:
    h, y = rng.standard_normal((60, 7)), rng.standard_normal(60)
    parts = [LeastSquares(*part) for part in split_evenly(h, y, 5)]
    eigenvalues = np.linalg.eigvalsh(h.T @ h)
    rate, beta = best_momentum(eigenvalues[-1], eigenvalues[0])
    if not momentum:
        rate, beta = 1 / eigenvalues[-1], 0.0
    ends = run(5, lambda comm: gd(comm, parts[comm.rank], rate=rate, steps=900, momentum=beta))
    expected = np.linalg.lstsq(h, y, rcond=None)[0]
    for end in ends:
        np.testing.assert_allclose(end.model, expected, atol=1e-6)


def test_a_logistic_task_and_its_derivatives(rng: np.random.Generator) -> None:
    h, y = rng.standard_normal((40, 4)), np.sign(rng.standard_normal(40))
    task = Logistic(h, y, 0.1, weight=1 / 40)
    at, step = rng.standard_normal(4), 1e-6

    def value(model: np.ndarray) -> float:
        return float(np.log1p(np.exp(-y * (h @ model))).mean() + 0.05 * model @ model)

    assert task.value(at) == pytest.approx(value(at))
    for k, unit in enumerate(np.eye(4)):
        slope = (value(at + step * unit) - value(at - step * unit)) / (2 * step)
        assert task.gradient(at)[k] == pytest.approx(slope, abs=1e-7)
        turn = (task.gradient(at + step * unit) - task.gradient(at - step * unit)) / (2 * step)
        np.testing.assert_allclose(task.hessian_product(at, unit), turn, atol=1e-7)
    linear = rng.standard_normal(4)
    found = minimize(lambda m: value(m) - linear @ m + m @ m, np.zeros(4), tol=1e-12).x
    np.testing.assert_allclose(task.proximal(linear, 2.0), found, atol=1e-5)


def test_the_synthetic_data_is_what_its_paper_says() -> None:
    parts = gadmm_synthetic(24, seed=3)
    q = [np.linalg.eigh(h)[1][:, -1] for h, _ in parts[1:]]
    for rank, (h, y) in enumerate(parts):
        assert LeastSquares(h, y).smoothness() == pytest.approx((1.3**rank + 1) ** 2)
    np.testing.assert_allclose(np.abs(np.array(q) @ np.array(q).T), np.eye(23), atol=1e-7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h, y: (h[:0], y[:0]), "gd: rank 2: there are no samples"),
        (lambda h, y: (h * np.nan, y), "gd: rank 2: NaN or infinity is among the samples"),
        (lambda h, y: (h[:, :2], y), "gd: rank 0 has features = 3, rank 2 has 2"),
    ],
)
def test_bad_data_of_one_rank_is_an_error_on_all(change: object, says: str) -> None:
    h, y = np.ones((4, 3)), np.ones(4)
    parts = [LeastSquares(h, y) for _ in range(4)]
    parts[2] = LeastSquares(*change(h, y))  # type: ignore[operator]
    errors = outcomes_of(4, lambda comm: gd(comm, parts[comm.rank], rate=0.1, steps=3))
    assert all(isinstance(error, ValueError) for error in errors)
    assert all(str(error).startswith(says) for error in errors), errors
