# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with and without momentum, the baseline for the other methods.

θ(k+1) = θ(k) − α·Σ ∇f_i(θ(k)) + β·(θ(k) − θ(k−1)), Polyak 1964 ("heavy ball"); β = 0: Cauchy's.
"""

from __future__ import annotations

import math

import numpy as np

from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Comm, Watch, nobody
from p4reduce.methods._finite import finite_sum
from p4reduce.methods.rank_data import Differentiable
from p4reduce.methods.result import CountedComm, Result, SolverProgress


def gd(
    comm: Comm,
    problem: Differentiable,
    *,
    rate: float,
    steps: int,
    momentum: float = 0.0,
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ); each step all ranks' gradients are summed.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        rate: α; 1/L for L the smoothness of the sum.
        steps: how many.
        momentum: β, from 0 to below 1.
        watch: called after each step; a true value ends the method (`Watch`).

    Returns:
        The model is θ, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or if the model diverges.
    """
    trouble = first_of(
        positive("rate", rate),
        at_least("steps", steps, 1),
        "" if 0 <= momentum < 1 else f"momentum={momentum:g}: 0 to below 1 is needed",
    )
    settings = {"rate": rate, "steps": steps, "momentum": momentum}
    comm = CountedComm(comm)
    begin(comm, "gd", problem, settings, trouble)
    model = np.zeros(problem.size)
    before = model
    progress = SolverProgress(comm, model, watch)
    for step in range(1, steps + 1):
        diverged = f"gd: the model diverges at step {step}: a smaller rate than {rate:g} is needed"
        total = finite_sum(comm, problem.gradient(model), "gd/gradient", diverged)
        model, before = model - rate * total + momentum * (model - before), model
        if progress.ends(step, model):
            break
    return progress.result()


def best_momentum(largest: float, smallest: float) -> tuple[float, float]:
    """Return Polyak's rate and momentum for a quadratic with eigenvalues between these two.

    α = 4/(√L + √μ)², β = ((√L − √μ)/(√L + √μ))².

    Args:
        largest: L, positive.
        smallest: μ, positive.
    """
    high, low = math.sqrt(largest), math.sqrt(smallest)
    return 4 / (high + low) ** 2, ((high - low) / (high + low)) ** 2
