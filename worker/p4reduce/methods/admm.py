# SPDX-License-Identifier: Apache-2.0
"""Consensus ADMM: each rank solves its own part, and one sum an iteration brings them together.

Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed Optimization and Statistical Learning via the
Alternating Direction Method of Multipliers", 2011. This is its "Global Variable Consensus
Optimization", in the "Scaled Form" of the multipliers, with n ranks:

    θ_i ← argmin f_i(θ) + ρ/2·‖θ − z + u_i‖²
    z   ← Σ (θ_i + u_i) / n
    u_i ← u_i + θ_i − z

The network is a star with the switch in its middle: one all-reduce of d numbers an iteration.
"""

from __future__ import annotations

import numpy as np

from p4reduce.methods._begin import begin, solvable, solved
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Comm, Watch, nobody
from p4reduce.methods._finite import finite_sum
from p4reduce.methods.rank_data import Proximal
from p4reduce.methods.result import CountedComm, Result, SolverProgress


def admm(comm: Comm, problem: Proximal, *, rho: float, steps: int, watch: Watch = nobody) -> Result:
    """Minimise Σ f_i(θ) by local solves and averages.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        rho: ρ, positive.
        steps: iterations.
        watch: called at each iteration, with z.

    Returns:
        The model is z, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or a matrix that is singular.
    """
    trouble = first_of(positive("rho", rho), at_least("steps", steps, 1))
    comm = CountedComm(comm)
    begin(comm, "admm", problem, {"rho": rho, "steps": steps}, trouble or solvable(problem, rho))
    z, u = np.zeros(problem.size), np.zeros(problem.size)
    progress = SolverProgress(comm, z, watch)
    for step in range(1, steps + 1):
        model = solved(problem, rho * (z - u), rho)  # θ_i
        failed = f"admm: a local solve fails at step {step}: another rho than {rho:g} is needed"
        z = finite_sum(comm, model + u, "admm/sum", failed) / comm.size  # the mean
        u = u + model - z  # the scaled multiplier
        if progress.ends(step, z):
            break
    return progress.result()
