# SPDX-License-Identifier: Apache-2.0
"""GADMM and D-GADMM: ranks on a chain, each of which talks to its two neighbours only.

Elgabli, Park, Bedi, Bennis and Aggarwal, "GADMM: Fast and Communication Efficient Framework for
Distributed Machine Learning", JMLR 21 (2020), arXiv 1909.00047. They minimise Σ f_n(θ_n) with
θ_n = θ_{n+1} along the chain. An iteration of GADMM, with λ_n of the link from n to n + 1:

    heads: θ_n ← argmin f_n(θ) − ⟨λ_{n−1}, θ⟩ + ⟨λ_n, θ⟩ + ρ/2·‖θ_{n−1} − θ‖² + ρ/2·‖θ − θ_{n+1}‖²
    tails: the same, with what the heads have become
    λ_n ← λ_n + ρ(θ_n − θ_{n+1})

Here a rank keeps Λ_n = λ_n − λ_{n−1} and needs its neighbours' sum S_n alone:

    θ_n ← argmin f_n(θ) − ⟨ρS_n − Λ_n, θ⟩ + ρ·degree_n/2·‖θ‖²
    Λ_n ← Λ_n + ρ(degree_n·θ_n − S_n)

(The authors' code, aelgabli/GADMM, group_ADMM_closedForm.m, has these updates for least squares.)
D-GADMM draws another chain every τ iterations. Λ stays with the rank, as it does in their code:
ΣΛ_n = 0 whatever the chain is. A dual tied to a place of the chain would meet another rank's
gradient there, and the method then does not converge.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from p4reduce.methods._begin import begin, solvable, solved
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Array, Comm, Watch, nobody
from p4reduce.methods.meeting import checksum
from p4reduce.methods.neighbours import HEADS, TAILS, ChainPlace, Grid, Neighbours, OneJob
from p4reduce.methods.rank_data import Proximal
from p4reduce.methods.result import CountedComm, Result, SolverProgress

By = Callable[[Comm, Grid], Neighbours]

_LOOK = 50  # iterations, after which the ranks hear whether a model has left the grid


def gadmm(
    comm: Comm,
    problem: Proximal,
    *,
    rho: float,
    steps: int,
    by: By = OneJob,
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ) along the chain of the ranks in their order.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        rho: ρ, positive.
        steps: iterations.
        by: how models travel: `neighbours.OneJob` or `neighbours.Groups`.
        watch: called at each iteration, with this rank's θ.

    Returns:
        The model is this rank's θ, shape (d,). The ranks' models converge to each other.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, a matrix that is singular, or a
            model that diverges.
    """
    return _gadmm("gadmm", comm, problem, rho, steps, 0, 0, by, watch)


def dgadmm(
    comm: Comm,
    problem: Proximal,
    *,
    rho: float,
    steps: int,
    period: int = 15,
    seed: int = 0,
    by: By = OneJob,
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ) along a chain that is drawn again every τ iterations.

    Args:
        comm: as for `gadmm`.
        problem: as for `gadmm`.
        rho: as for `gadmm`.
        steps: as for `gadmm`.
        by: as for `gadmm`.
        watch: as for `gadmm`.
        period: τ, iterations with one chain.
        seed: of the chains; the same on all ranks.

    Returns:
        As `gadmm`.

    Raises:
        ValueError: as `gadmm`.
    """
    return _gadmm("dgadmm", comm, problem, rho, steps, period, seed, by, watch)


def _gadmm(
    method: str,
    comm: Comm,
    problem: Proximal,
    rho: float,
    steps: int,
    period: int,
    seed: int,
    by: By,
    watch: Watch,
) -> Result:
    trouble = first_of(
        positive("rho", rho),
        at_least("steps", steps, 1),
        at_least("period", period, 0 if method == "gadmm" else 1),
        at_least("seed", seed, 0),
    )
    settings = {"rho": rho, "steps": steps, "period": period, "seed": seed}
    degrees = {ChainPlace(range(comm.size), rank).degree for rank in range(comm.size)}
    solves = [rho * degree for degree in degrees]
    trouble = trouble or problem.trouble() or solvable(problem, *solves)
    alone = np.zeros(0) if trouble else problem.proximal(np.zeros(problem.size), max(solves))
    greatest = int(np.frexp(np.abs(alone).max(initial=0.0))[1])
    facts = {"exponent": greatest}
    same = {"checksum of by": checksum(getattr(by, "__qualname__", ""))}
    comm = CountedComm(comm)
    gathered = begin(comm, method, problem, settings, trouble, facts=facts, same=same)
    grid = Grid(int(gathered["exponent"].max()))
    random = np.random.default_rng(seed)
    place = ChainPlace(range(comm.size), comm.rank)
    neighbours = by(comm, grid)
    try:
        neighbours.link(range(comm.size))
        model = np.zeros(problem.size)
        progress = SolverProgress(comm, model, watch)
        dual, around = np.zeros(problem.size), np.zeros(problem.size)

        def solve() -> Array:
            at = rho * around - dual  # ρS_n − Λ_n
            return grid.round(solved(problem, at, rho * place.degree))  # argmin

        for step in range(1, steps + 1):
            if period and step > 1 and (step - 1) % period == 0:
                chain = random.permutation(comm.size).tolist()
                place = ChainPlace(chain, comm.rank)
                neighbours.link(chain)
                heard = neighbours.send(TAILS, model)  # the heads' new neighbours
                around = around if heard is None else heard
            for kind in (HEADS, TAILS):  # first the heads solve, then the tails
                if place.kind == kind:
                    model = solve()
                heard = neighbours.send(kind, model)
                around = around if heard is None else heard
            dual = dual + rho * (place.degree * model - around)  # Λ_n
            if step % _LOOK == 0 or step == steps:
                _keep_running(grid, comm, method, rho)
            if progress.ends(step, model):
                break
    finally:
        neighbours.close()
    return progress.result()


def _keep_running(grid: Grid, comm: Comm, method: str, rho: float) -> None:
    """Raise an error on all ranks if the model of one has left the grid."""
    if comm.allreduce(np.array([grid.left], np.int32), name=f"{method}/left").any():
        raise ValueError(
            f"{method}: a rank's model diverges, or a local solve fails: another rho than "
            f"{rho:g} is needed"
        )
