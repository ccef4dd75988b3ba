# SPDX-License-Identifier: Apache-2.0
"""DS-LSR1: a quasi-Newton method whose curvature matrix never travels.

Jahani, Nazari, Rusakov, Berahas and Takáč, "Scaling Up Quasi-Newton Algorithms: Communication
Efficient Distributed SR1", arXiv 1905.13096, a distributed form of S-LSR1 (Berahas, Jahani,
Richtárik and Takáč, arXiv 1901.09997). In each iteration, for S of m random directions from a seed
that all ranks share and Y = ∇²F(w)·S:

    B = Y·M⁻¹·Yᵀ,   M = SᵀY      (the compact form of SR1 for B₀ = 0; Y is not a difference here)

and the step p solves min gᵀp + ½pᵀBp, ‖p‖ ≤ Δ, by Steihaug's conjugate gradients (Nocedal and
Wright, "Numerical Optimization", algorithm 7.2). Rank i has Y_i = ∇²f_i(w)·S, and ΣY_i = Y. What
is summed, in floats:

    f and g: 1 + d;   M = Σ SᵀY_i: m²;   per product B·q: Σ Y_iᵀq, m, then Σ Y_i·(M⁻¹Yᵀq), d

which is 1 + d + m² + n_cg(d + m) per iteration; the naive form sums Y, m·d. M⁻¹ is built up pair by
pair from Schur complements c_j = s_jᵀ(y_j − B s_j), by which SR1 divides. Pairs with a small one
are skipped. SR1's own rule compares |c_j| with ‖s_j‖·‖y_j − B s_j‖. That needs YᵀY, which no sum of
the ranks' own products gives. Here it is compared with the greatest |s_iᵀy_i|.

The paper calls the first form DS-LSR1 and the second naive. The rule for pairs and the trust
region's constants are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive
from p4reduce.methods._communicator import Array, Comm, Watch, nobody
from p4reduce.methods._finite import finite_sum, held
from p4reduce.methods.meeting import checksum
from p4reduce.methods.rank_data import Curved
from p4reduce.methods.result import CountedComm, Result, SolverProgress

ACCEPT = 1e-6  # a step is taken if it gains more than this part of what the model promised
GOOD, BAD = 0.75, 0.1  # above: the radius is doubled; below: it is halved
FORCING = 0.5  # conjugate gradients end when the residual is this part of the gradient
SKIP = 1e-6  # below, a pair's Schur complement is the rounding of 32-bit lanes

Product = Callable[[Array], Array]


def dslsr1(
    comm: Comm,
    problem: Curved,
    *,
    steps: int,
    memory: int = 16,
    radius: float = 1.0,
    seed: int = 0,
    start: Array | None = None,
    naive: bool = False,
    watch: Watch = nobody,
) -> Result:
    """Minimise Σ f_i(w), which need not be convex.

    Args:
        comm: the ranks.
        problem: this rank's f_i.
        steps: iterations; those whose step is refused count too.
        memory: m, pairs per iteration.
        radius: Δ at first.
        seed: of the directions; the same on all ranks.
        start: the first model, shape (d,), the same on all ranks; None: zeros.
        naive: sum Y itself: the same iterates for m·d floats.
        watch: called at each iteration.

    Returns:
        The model is w, shape (d,), the same on all ranks.

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or an f at the start or
            derivatives that are not finite.
    """
    model = np.zeros(problem.size) if start is None else np.asarray(start, np.float64)
    trouble = first_of(
        at_least("steps", steps, 1),
        at_least("memory", memory, 1),
        positive("radius", radius),
        at_least("seed", seed, 0),
        "" if model.shape == (problem.size,) else f"start has shape {model.shape}",
        "" if np.isfinite(model).all() else "NaN or infinity is in the start",
    )
    settings = {"steps": steps, "memory": memory, "radius": radius, "seed": seed, "naive": naive}
    same = {"checksum of start": checksum(model.tobytes())}
    comm = CountedComm(comm)
    begin(comm, "dslsr1", problem, settings, trouble, same=same)

    def total(mine: Array, what: str) -> Array:
        not_finite = f"dslsr1: {what} is not finite on all ranks: another start or radius is needed"
        return finite_sum(comm, mine, f"dslsr1/{what}", not_finite)

    def objective(at: Array) -> float:
        """NaN where it is too large for lanes: such a step is refused."""
        mine = held(np.array([problem.value(at)]))
        return float(comm.allreduce(mine, name="dslsr1/f")[0])

    progress = SolverProgress(comm, model, watch)
    value, gradient = objective(model), total(problem.gradient(model), "g")
    if math.isnan(value):
        raise ValueError(
            "dslsr1: f is too large or not finite on all ranks: another start is needed"
        )
    for step in range(1, steps + 1):
        random = np.random.default_rng([seed, step])
        directions = random.standard_normal((problem.size, memory))
        own = problem.hessian_product(model, directions)
        product = _local(directions, total(own, "Y")) if naive else _shared(directions, own, total)
        move, promised = steihaug(gradient, product, radius)
        reached = objective(model + move)
        gained = (value - reached) / promised if promised > 0 else -1.0
        if gained > GOOD:
            radius *= 2
        elif not gained >= BAD:
            radius /= 2
        if gained > ACCEPT:
            model, value = model + move, reached
            gradient = total(problem.gradient(model), "g")
        if progress.ends(step, model):
            break
    return progress.result()


def _shared(directions: Array, own: Array, total: Callable[[Array, str], Array]) -> Product:
    """Return q → B·q by sums of m and of d floats, after one of m²."""
    kept, inverse = inverse_of(total(directions.T @ own, "M"))  # M = Σ SᵀY_i
    own = own[:, kept]

    def product(vector: Array) -> Array:
        inner = inverse @ total(own.T @ vector, "Yq")  # M⁻¹·Yᵀq
        return total(own @ inner, "Bq")  # Y·M⁻¹·Yᵀq

    return product


def _local(directions: Array, images: Array) -> Product:
    """Return q → B·q where Y is on all ranks."""
    kept, inverse = inverse_of(directions.T @ images)
    images = images[:, kept]
    return lambda vector: np.asarray(images @ (inverse @ (images.T @ vector)))


def inverse_of(matrix: Array, skip: float = SKIP) -> tuple[list[int], Array]:
    """Return the pairs that are kept, and the inverse of their part of M = SᵀY.

    Args:
        matrix: M, shape (m, m); its symmetric part is taken.
        skip: pairs are kept whose Schur complement is at least this part of the greatest |M_jj|.
    """
    matrix = (matrix + matrix.T) / 2
    least = skip * float(np.abs(np.diag(matrix)).max())
    kept: list[int] = []
    inverse = np.zeros((0, 0))
    for pair in range(len(matrix)):
        column = matrix[kept, pair]
        solved = inverse @ column
        complement = float(matrix[pair, pair] - column @ solved)
        if complement == 0 or abs(complement) < least:
            continue
        corner = np.append(solved, -1.0)
        grown = np.zeros((len(kept) + 1, len(kept) + 1))
        grown[:-1, :-1] = inverse
        inverse = grown + np.outer(corner, corner) / complement
        kept.append(pair)
    return kept, inverse


def steihaug(gradient: Array, product: Product, radius: float) -> tuple[Array, float]:
    """Minimise gᵀp + ½pᵀBp within a radius, nearly.

    Args:
        gradient: g, shape (d,).
        product: q → B·q.
        radius: Δ.

    Returns:
        p, and by how much the model says that the objective falls.
    """
    step, image = np.zeros_like(gradient), np.zeros_like(gradient)  # p and B·p
    rest, way = gradient, -gradient
    wanted = FORCING * float(np.linalg.norm(gradient))
    for _ in range(len(gradient)):
        if float(np.linalg.norm(rest)) <= wanted:
            break
        bent = product(way)
        curvature, square = float(way @ bent), float(rest @ rest)
        length = square / curvature if curvature > 0 else np.inf
        if curvature <= 0 or np.linalg.norm(step + length * way) >= radius:
            length = _to_the_edge(step, way, radius)
            step, image = step + length * way, image + length * bent
            break
        step, image = step + length * way, image + length * bent
        rest = rest + length * bent
        way = -rest + float(rest @ rest) / square * way
    return step, -float(gradient @ step + 0.5 * step @ image)


def _to_the_edge(step: Array, way: Array, radius: float) -> float:
    """Return the positive t with ‖p + t·q‖ = Δ."""
    a, b, c = float(way @ way), float(step @ way), float(step @ step) - radius**2
    root = np.sqrt(max(b * b - a * c, 0.0))
    return float((root - b) / a)
