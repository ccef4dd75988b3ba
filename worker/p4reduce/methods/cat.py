# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with adaptive compression: blocks of the gradient, as many as pay.

CAT, communication-aware adaptive tuning (Khirirat, Magnússon, Aytekin and Johansson, arXiv
2003.06377). Each step takes the level T of compression that maximises the guaranteed improvement
per unit of communication, α(T)/C(T). Then θ ← θ − γ(T)·Q_T(∇f). Here Q is a choice of blocks, and
the cost is this protocol's on a given link. What is left out is added to the next gradient (error
feedback). The choice itself is `p4reduce.compression`'s, where the formulas stand (`levels.py`,
`costs.py`).

A block has 256 numbers, so a model of one block leaves nothing to choose: it is gradient descent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.compression import CompressedAllreduce, SwitchLink, compressor_by_name
from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Comm, Watch, nobody
from p4reduce.methods._finite import FAR
from p4reduce.methods.meeting import checksum
from p4reduce.methods.rank_data import Differentiable
from p4reduce.methods.result import CountedComm, Result, SolverProgress
from p4reduce.wire.calls import SUM, Operation

BANDWIDTH, ROUND_TRIP = 1e7, 1e-3  # bit/s and seconds


def cat(
    comm: Comm,
    problem: Differentiable,
    *,
    rate: float,
    steps: int,
    compression: str = "cat",
    bandwidth: float = BANDWIDTH,
    round_trip: float = ROUND_TRIP,
    seed: int = 0,
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ); each step some blocks of all ranks' gradients are summed.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        rate: 1/L for L the smoothness of the sum.
        steps: how many.
        compression: by a name of `compression.known_compressions`, with lanes of 32 bits: "cat"
            lets the ranks agree on blocks first, "cat:own" lets each choose by itself, "cat:paper"
            is the paper's rule.
        bandwidth: of a rank's link, bit/s.
        round_trip: of the same, seconds.
        seed: of random choices.
        watch: called at each step.

    Returns:
        The model is θ, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or if the model diverges.
    """
    trouble = first_of(
        positive("rate", rate),
        at_least("steps", steps, 1),
        positive("bandwidth", bandwidth),
        "" if round_trip == 0 else positive("round_trip", round_trip),
        "" if "/" not in compression else f"compression={compression!r}: without narrow lanes",
    )
    compressor = None
    if not trouble:
        try:
            link = SwitchLink(comm.size, bandwidth, round_trip)
            compressor = compressor_by_name(compression, comm.size, link, seed=seed)
        except ValueError as error:
            trouble = str(error)
    settings = {"rate": rate, "steps": steps, "bandwidth": bandwidth, "round_trip": round_trip}
    same = {"checksum of compression": checksum(compression)}
    comm = CountedComm(comm)
    begin(comm, "cat", problem, {**settings, "seed": seed}, trouble, same=same)
    assert compressor is not None  # else all ranks have raised an error
    reduce = CompressedAllreduce(_MethodSums(comm), compressor)
    model = np.zeros(problem.size)
    progress = SolverProgress(comm, model, watch)
    for step in range(1, steps + 1):
        model = model - rate * reduce.sum(problem.gradient(model), "cat/gradient")
        if not (np.abs(model) < FAR).all():
            raise ValueError(
                f"cat: the model diverges at step {step}: a smaller rate than {rate:g} is needed"
            )
        if progress.ends(step, model):
            break
    return progress.result()


class _MethodSums:
    """What `CompressedAllreduce` needs, of what methods need."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.size = comm.size

    def allreduce(
        self,
        array: npt.NDArray[Any],
        op: Operation = SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[Any]:
        """The sum; neither means nor narrow lanes are asked for."""
        return np.asarray(self._comm.allreduce(array, name=name))
