# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: each rank steps by itself, and models are averaged every H steps.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv 1805.09767. K ranks step
x ← x − η·g on samples of their own, and after H steps each takes the mean of all. H = 1 is the
ordinary sum of gradients.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv
2311.08105: what the ranks have moved by on average, Δ, is a gradient for an outer optimiser with
Nesterov's momentum:

    v ← outer_momentum·v + Δ,   θ ← θ + outer_rate·(Δ + outer_momentum·v)

With outer_rate = 1 and outer_momentum = 0 that is the mean. Their inner optimiser is AdamW; this
one is SGD. `p4reduce.torch.LocalSGD` takes any inner optimiser of torch's.
"""

from __future__ import annotations

import numpy as np

from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Array, Comm, Watch, nobody
from p4reduce.methods._finite import finite_sum
from p4reduce.methods.meeting import checksum
from p4reduce.methods.rank_data import Sampled
from p4reduce.methods.result import CountedComm, Result, SolverProgress

DILOCO_RATE, DILOCO_MOMENTUM = 0.7, 0.9  # the authors' outer settings


def local_sgd(
    comm: Comm,
    problem: Sampled,
    *,
    rate: float,
    steps: int,
    every: int,
    batch: int | None = None,
    seed: int = 0,
    start: Array | None = None,
    outer_rate: float = 1.0,
    outer_momentum: float = 0.0,
    precision: str | None = None,
    watch: Watch = nobody,
) -> Result:
    """Minimise the mean of the f_i(θ); every few steps the models are averaged.

    With H = 1 and whole gradients it is `gd` with `rate` divided by the number of ranks. With
    H > 1 and parts that differ it ends beside the minimum, as each rank moves towards its own.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        rate: η of the local steps.
        steps: of each rank.
        every: H, steps between two averages; the last step has one in any case.
        batch: samples of a step, drawn with replacement. None: all of this rank's.
        seed: of the samples, with the rank.
        start: the first model, shape (d,); rank 0's counts. None: zeros.
        outer_rate: positive; DiLoCo's authors take 0.7.
        outer_momentum: Nesterov's, from 0 to below 1; they take 0.9.
        precision: of the lanes for what the models have moved by, as of `allreduce`.
        watch: called at each average, with the number of steps before it.

    Returns:
        The model is θ, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or if a model diverges.
    """
    begun = np.zeros(problem.size) if start is None else np.asarray(start, np.float64)
    trouble = first_of(
        positive("rate", rate),
        at_least("steps", steps, 1),
        at_least("every", every, 1),
        at_least("batch", 1 if batch is None else batch, 1),
        at_least("seed", seed, 0),
        positive("outer_rate", outer_rate),
        "" if 0 <= outer_momentum < 1 else f"outer_momentum={outer_momentum:g}: 0 to below 1",
        ""
        if begun.shape == (problem.size,) and np.isfinite(begun).all()
        else f"start: {problem.size} finite numbers are needed",
    )
    settings = {"rate": rate, "steps": steps, "every": every}
    settings |= {"outer_rate": outer_rate, "outer_momentum": outer_momentum}
    same = {"checksum of precision": checksum(str(precision)), "start": start is not None}
    comm = CountedComm(comm)
    begin(comm, "local-sgd", problem, settings, trouble, same=same)
    random = np.random.default_rng([seed, comm.rank])
    if start is not None:
        begun = comm.allreduce(begun * (comm.rank == 0), name="local-sgd/start")
    shared, speed = begun, np.zeros(problem.size)
    model = shared
    progress = SolverProgress(comm, shared, watch)
    for step in range(1, steps + 1):
        if batch is None:
            gradient = problem.gradient(model)
        else:
            rows = random.integers(problem.samples, size=batch)
            gradient = problem.stochastic_gradient(model, rows)
        model = model - rate * gradient  # the local (inner) step
        if step % every and step < steps:
            continue
        diverged = (
            f"local-sgd: a rank's model diverges before step {step}: a smaller rate than "
            f"{rate:g} is needed"
        )
        total = finite_sum(comm, model - shared, "local-sgd/moved", diverged, precision=precision)
        moved = total / comm.size  # Δ
        speed = outer_momentum * speed + moved  # v
        shared = shared + outer_rate * (moved + outer_momentum * speed)  # the outer step
        model = shared
        if progress.ends(step, shared):
            break
    return progress.result()
