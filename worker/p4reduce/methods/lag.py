# SPDX-License-Identifier: Apache-2.0
"""LAG: gradient descent in which a rank uploads only if its gradient has changed enough.

Chen, Giannakis, Sun and Yin, "LAG: Lazily Aggregated Gradient for Communication-Efficient
Distributed Learning", NeurIPS 2018, arXiv 1805.09965. With M ranks, θ̂_m the model at which rank m
last uploaded, and δ_m = ∇f_m(θᵏ) − ∇f_m(θ̂_m):

    θᵏ⁺¹ = θᵏ − α∇ᵏ,   ∇ᵏ = ∇ᵏ⁻¹ + Σ δ_m over the ranks that upload          (step)
    LAG-WK: silent while ‖δ_m‖²          ≤ ξ/(α²M²)·Σ_{d=1..D} ‖θᵏ⁺¹⁻ᵈ − θᵏ⁻ᵈ‖²   (WK)
    LAG-PS: silent while L_m²‖θ̂_m − θᵏ‖² ≤ ξ/(α²M²)·Σ_{d=1..D} ‖θᵏ⁺¹⁻ᵈ − θᵏ⁻ᵈ‖²   (PS)

(WK) and (PS) are the trigger conditions in the paper's algorithms LAG-WK and LAG-PS. The labels are
this module's. The authors' code (chentianyi1991/LAG-code, nips2018synlinear.m) has both rules, with
D = 10, α = 1/L, and ξ = 1/D for WK and 10/D for PS.

How far (PS) can go: a rank uploads about every k_m = max(1, √(ξD)·L/(M·L_m)) steps, as the model
moves by about as much in each. The delay costs stability from √(ξD) of about 1.2·M on. So
ξ = 0.15·M² for D = 10 is about the largest that converges, and uploads per step are then about
Σ L_m/(1.2·L).

A rank that is silent has zeros, which are not sent. In the paper a server decides by (PS). Here
each rank does so itself, as all know θ, and a silent rank of LAG-PS computes no gradient.

What is uploaded is rounded to integers of a unit that all ranks compute from the right-hand side,
so that n ranks' sum fits into a lane. A rank keeps the sum of what it has uploaded, not its
gradient. So ∇ᵏ is exactly the sum of what the ranks keep: errors of rounding do not add up, and
what does not fit into a lane is part of the next δ.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Array, Comm, Watch, nobody
from p4reduce.methods._finite import FAR
from p4reduce.methods.rank_data import Differentiable, Smooth
from p4reduce.methods.result import CountedComm, Result, SolverProgress

DEPTH = 10
XI = 0.1
_LANES = {"int32": np.int32, "int16": np.int16, "int8": np.int8}
_FINEST = 40  # bits between the unit of the first upload and the least there is
_AWAY = 1e8  # times the longest of the first steps: the model diverges

Rule = Callable[[Array, Array, Array, float], Array | None]
"""What a rank's gradient is at a model; None: it stays silent. Gets the model, what it has
uploaded, the model of its last upload, and the right-hand side of (WK) and (PS)."""


def lag_wk(
    comm: Comm,
    problem: Differentiable,
    *,
    rate: float,
    steps: int,
    xi: float = XI,
    depth: int = DEPTH,
    precision: str = "int32",
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ); a rank uploads if its gradient has changed by more than (WK) allows.

    Args:
        comm: the ranks, at most 63 with int8 lanes.
        problem: this rank's f_i.
        rate: α; 1/L for L the smoothness of the sum.
        steps: how many.
        xi: ξ; greater ones upload less, and may not converge.
        depth: D, of how many steps the lengths count.
        precision: of the lanes: "int32", "int16" or "int8". The first upload has int32.
        watch: called at each step.

    Returns:
        The model is θ, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or if the model diverges.
    """

    def rule(model: Array, uploaded: Array, _at: Array, allowed: float) -> Array | None:
        gradient = problem.gradient(model)
        return gradient if _square(gradient - uploaded) > allowed else None  # (WK)

    return _lag("lag-wk", comm, problem, rule, rate, steps, xi, depth, precision, watch)


def lag_ps(
    comm: Comm,
    problem: Smooth,
    *,
    rate: float,
    steps: int,
    xi: float = XI,
    depth: int = DEPTH,
    precision: str = "int32",
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(θ); a rank uploads if the model has moved by more than (PS) allows.

    L_m is `problem.smoothness()`. Arguments, result and errors are those of `lag_wk`. Where the
    ranks' L_m differ, as in the authors' data, their ξ = 1 uploads less. If 16 or more ranks have
    such data, few of them dominate, and ξ up to 0.15·M² converges. Where ranks are alike,
    their errors add up, and the model diverges.
    """
    smoothness = 0.0 if problem.trouble() else problem.smoothness()

    def rule(model: Array, _uploaded: Array, at: Array, allowed: float) -> Array | None:
        moved = smoothness**2 * _square(at - model)
        return problem.gradient(model) if moved > allowed else None  # (PS)

    return _lag("lag-ps", comm, problem, rule, rate, steps, xi, depth, precision, watch)


def _lag(
    method: str,
    comm: Comm,
    problem: Differentiable,
    rule: Rule,
    rate: float,
    steps: int,
    xi: float,
    depth: int,
    precision: str,
    watch: Watch,
) -> Result:
    trouble = first_of(
        positive("rate", rate),
        at_least("steps", steps, 1),
        positive("xi", xi),
        at_least("depth", depth, 1),
        _lane_trouble(precision, comm.size),
    )
    model = np.zeros(problem.size)
    now = model if trouble or problem.trouble() else problem.gradient(model)
    greatest = int(np.frexp(np.abs(now).max(initial=0.0))[1])
    settings = {"rate": rate, "steps": steps, "xi": xi, "depth": depth}
    settings["precision"] = 8.0 * np.dtype(_LANES.get(precision, np.int32)).itemsize
    comm = CountedComm(comm)
    gathered = begin(comm, method, problem, settings, trouble, facts={"exponent": greatest})

    changed: Array | None = now
    lane = np.dtype(np.int32)  # of the first upload, of all ranks' whole gradients
    first = int(gathered["exponent"].max()) - (_most(lane, comm.size).bit_length() - 1)
    exponent = first
    at = model
    uploaded, total = np.zeros(problem.size), np.zeros(problem.size)
    squares: deque[float] = deque(maxlen=depth)
    longest = 0.0
    progress = SolverProgress(comm, model, watch)
    for step in range(1, steps + 1):
        if step > 1:
            share = xi / (rate * comm.size * rate * comm.size)
            allowed = share * math.fsum(squares)  # right of (WK) and (PS)
            lane = np.dtype(_LANES[precision])
            if allowed:
                exponent = _exponent(allowed, problem.size, lane, comm.size)
            else:  # the model stays, as uploads cancel: smaller changes have to be seen
                exponent -= 1
            exponent = max(exponent, first - _FINEST)
            changed = rule(model, uploaded, at, allowed)
        delta = np.zeros(problem.size) if changed is None else changed - uploaded  # δ_m
        whole, limit = np.rint(np.ldexp(delta, -exponent)), _most(lane, comm.size)
        fits = np.clip(whole, -limit, limit)
        if changed is not None and (whole == fits).all():
            at = model
        change = comm.allreduce(fits.astype(lane), name=f"{method}/change")
        uploaded = uploaded + np.ldexp(fits, exponent)
        total = total + np.ldexp(change.astype(np.float64), exponent)  # ∇ᵏ of (step)
        move = -rate * total
        model = model + move
        squares.append(_square(move))
        longest = max(longest, squares[-1]) if step <= depth else longest
        near = (np.abs(model) < FAR).all() and squares[-1] <= _AWAY * longest
        if longest and not near:
            raise ValueError(
                f"{method}: the model diverges at step {step}: xi={xi:g} or rate={rate:g} is too "
                "large for these ranks' data"
            )
        if progress.ends(step, model):
            break
    return progress.result()


def _square(vector: Array) -> float:
    """‖·‖², rounded once, so that it is the same bits on all ranks."""
    return math.fsum((vector * vector).tolist())


def _most(lane: np.dtype[Any], ranks: int) -> int:
    """The greatest integer of which the sum over the ranks fits into a lane."""
    return int(np.iinfo(lane).max) // ranks


def _exponent(allowed: float, size: int, lane: np.dtype[Any], ranks: int) -> int:
    """Of the unit: rounding costs half of what is allowed at most; spare bits go to both ends."""
    spare = max(_most(lane, ranks).bit_length() - 3, 0)
    return int(np.frexp(math.sqrt(allowed / size))[1]) - 1 - spare // 2


def _lane_trouble(precision: str, ranks: int) -> str:
    if precision not in _LANES:
        return f"precision={precision!r}: one of {', '.join(_LANES)} is needed"
    if _most(np.dtype(_LANES[precision]), ranks) < 2:
        return f"precision={precision!r} leaves no bit for a rank of {ranks}: at most 63 can use it"
    return ""
