# SPDX-License-Identifier: Apache-2.0
"""Consensus ADMM beside its equations in one process, numpy and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from method_tasks import gd_steps, optimum, refusal, synthetic, to_gap
from p4reduce.methods.admm import admm
from p4reduce.methods.in_process import run
from p4reduce.methods.problems import LeastSquares, Logistic, split_evenly
from scipy.optimize import minimize
from worker_system import System


def test_iterations_and_uploads_with_24_ranks() -> None:
    parts = synthetic(24)
    star = to_gap(admm, parts, optimum(parts), 1e-4, rho=5, steps=200)
    assert star.gap <= 1e-4
    assert star.steps <= 130
    assert star.uploads == 24 * (star.steps + 1)  # the meeting is one


def test_each_iterate_is_that_of_the_equations(rng: np.random.Generator, system: System) -> None:
    h, y, rho = rng.standard_normal((48, 5)), rng.standard_normal(48), 3.0
    shares = split_evenly(h, y, 6)
    thetas, duals, z = np.zeros((6, 5)), np.zeros((6, 5)), np.zeros(5)
    for _ in range(12):
        for i, (part, targets) in enumerate(shares):
            # θ_i of the unscaled form: fᵢ + ⟨yᵢ, θ − z⟩ + ρ/2‖θ − z‖²
            left = part.T @ part + rho * np.eye(5)
            thetas[i] = np.linalg.solve(left, part.T @ targets - duals[i] + rho * z)
        z = thetas.mean(axis=0) + duals.mean(axis=0) / rho
        duals += rho * (thetas - z)

    def work(comm: Any) -> Any:
        return admm(comm, LeastSquares(*shares[comm.rank]), rho=rho, steps=12).model

    for model in run(6, work):
        np.testing.assert_allclose(model, z, atol=1e-12)
    for model in system.run(6, work):
        np.testing.assert_allclose(model, z, atol=1e-6)


def test_a_logistic_task_ends_where_scipy_does(rng: np.random.Generator) -> None:
    h, y = rng.standard_normal((60, 4)), np.sign(rng.standard_normal(60))
    parts = [Logistic(*part, 0.1 / 4, 1 / 60) for part in split_evenly(h, y, 4)]
    expected = minimize(lambda m: sum(p.value(m) for p in parts), np.zeros(4), tol=1e-12).x
    models = run(4, lambda comm: admm(comm, parts[comm.rank], rho=0.05, steps=200).model)
    np.testing.assert_allclose(models[3], expected, atol=1e-5)


def test_bad_input_is_refused_on_all_ranks() -> None:
    parts = synthetic(3)
    assert refusal(admm, parts, rho=-1, steps=3) == (
        "admm: rank 0: rho=-1: a positive number is needed; "
        "rank 1: rho=-1: a positive number is needed; rank 2: rho=-1: a positive number is needed"
    )
    parts[2] = LeastSquares(1e12 * np.ones((2, 50)), np.ones(2))
    assert "rank 2: the matrix of the local solve is singular" in refusal(
        admm, parts, rho=1e-9, steps=3
    )
    parts[2] = LeastSquares(np.full((2, 50), np.nan), np.ones(2))
    assert refusal(admm, parts, rho=1, steps=3) == (
        "admm: rank 2: NaN or infinity is among the samples"
    )
    different = iter((1.0, 2.0, 2.0))
    said = refusal(lambda comm, part: admm(comm, part, rho=next(different), steps=3), synthetic(3))
    assert said == "admm: rank 0 has rho = 1, rank 1 has 2; all ranks need the same"


def test_a_refusal_over_the_switch_is_the_same_on_all_ranks(system: System) -> None:
    parts = synthetic(4)
    parts[2] = LeastSquares(np.full((2, 50), np.nan), np.ones(2))

    def work(comm: Any) -> str:
        with pytest.raises(ValueError, match="admm") as refused:
            admm(comm, parts[comm.rank], rho=1, steps=3)
        return str(refused.value)

    said = "admm: rank 2: NaN or infinity is among the samples"
    assert system.run(4, work) == [said] * 4


def test_it_needs_fewer_sums_than_gradient_descent() -> None:
    parts = synthetic(14)
    star = to_gap(admm, parts, optimum(parts), 1e-4, rho=5, steps=500)
    assert star.gap <= 1e-4
    assert star.steps < gd_steps(parts, 1e-4) / 2
