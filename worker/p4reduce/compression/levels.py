# SPDX-License-Identifier: Apache-2.0
"""How much progress a level T promises, and the T with the most progress for its price.

Khirirat, Magnusson, Aytekin and Johansson (arXiv 2003.06377). Let an objective's gradient be
L-Lipschitz, and let gamma = <g, Q> / (L |Q|²). Then the step x - gamma Q decreases the objective by
at least alpha / (2L) |g|², where alpha = <g, Q>² / (|g|² |Q|²). CAT sends the T that maximises
alpha(T) / C(T).

| scheme, I the T largest | Q_T(g) | alpha(T) | gamma(T) L |
|---|---|---|---|
| sparsification (S) | g on I | |g_I|² / |g|² | 1 |
| with signs (S+Q) | |g| sign(g) on I | |g_I|₁² / (T |g|²) | |g_I|₁ / (T |g|) |
| stochastic | g_j / p_j with probability p_j | |g|² / Σ(g_j² / p_j) | alpha |

The stochastic scheme has p_j = min(1, lambda |g_j|) with lambda such that Σp = T.

In all three, gamma L Q is the projection of g on the direction sent (in expectation for the last):
|gamma L Q - g|² = (1 - alpha) |g|². So gamma L Q is what this package sends (see `cat.py`):
messages of different levels add up, the step is 1/L for all, and error feedback has a contraction.

A unit is an element or a block. Of blocks, S chooses those of most energy, and S+Q those of largest
1-norm. The stochastic scheme keeps a block with a probability in proportion to its 2-norm. That
minimises Σ |g_b|²/p_b, as the paper's rule does for elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.compression import kernels
from p4reduce.compression.costs import CostModel, Encoding, FloatArray, IntArray

Vector = npt.NDArray[Any]


class Scheme(Enum):
    """How a gradient is made sparse."""

    SPARSE = "sparse"
    SIGNS = "signs"
    STOCHASTIC = "stochastic"

    def encoding(self, dimension: int, unit: int = 1, float_bits: int = 32) -> Encoding:
        """Return P_S or P_SQ of arXiv 2003.06377, for blocks of `unit` elements."""
        if self is Scheme.SIGNS:
            return Encoding(dimension, unit, value_bits=1, header_bits=float_bits)
        return Encoding(dimension, unit, value_bits=float_bits)


@dataclass(frozen=True, slots=True)
class Levels:
    """alpha and gamma L of every level of one gradient.

    Attributes:
        scheme: one of the three schemes.
        unit: elements of a unit.
        order: the units that are not zero, the most important first; shape (m,).
        weights: their 2-norms, or 1-norms for S+Q, in that order; shape (m,).
        alpha: alpha of the levels 1 to m, within 0 to 1; shape (m,).
        step: gamma L of the levels 1 to m; shape (m,).
    """

    scheme: Scheme
    unit: int
    order: IntArray
    weights: FloatArray
    alpha: FloatArray
    step: FloatArray

    def gamma(self, level: int, smoothness: float) -> float:
        """Return the step size of plain gradient descent, L being the `smoothness`."""
        return float(self.step[level - 1]) / smoothness

    def probabilities(self, level: int) -> FloatArray:
        """P of the units in `order` whose sum is `level`: min(1, lambda weight)."""
        kept, tail = _saturation(self.weights, np.array([level]))
        count = int(kept[0])
        result = np.ones(len(self.weights))
        if count < len(result):
            result[count:] = np.minimum(1.0, (level - count) / tail[0] * self.weights[count:])
        return result


@dataclass(frozen=True, slots=True)
class Choice:
    """A level, with its alpha and cost.

    Attributes:
        level: T; 0 if the gradient is zero.
        alpha: alpha(T).
        cost: C(T), in the cost model's unit.
    """

    level: int
    alpha: float
    cost: float


def measure(gradient: Vector, scheme: Scheme = Scheme.SPARSE, unit: int = 1) -> Levels:
    """Find alpha(T) and gamma(T) L for all T at once: one sort and cumulative sums, O(d log d).

    Args:
        gradient: any shape, finite, of floats.
        scheme: S, S+Q or stochastic.
        unit: elements that are chosen together.

    Raises:
        ValueError: the gradient contains NaN, infinity, or numbers of 2^128 or more.
    """
    flat = kernels.usable(gradient)
    energy = np.empty(-(-flat.size // unit))
    if not kernels.want(flat, None, unit, energies=energy):
        raise ValueError("no level can be chosen for a gradient with NaN or infinity in it")
    if scheme is Scheme.SIGNS:
        return measure_signs(flat, energy, unit)
    return measure_energy(energy, unit, scheme)


def measure_energy(energy: FloatArray, unit: int, scheme: Scheme = Scheme.SPARSE) -> Levels:
    """As `measure`, from the units' energies alone (squared 2-norms); not for S+Q.

    Raises:
        ValueError: the energies have NaN or infinity in them.
    """
    alpha = sparse_alpha(energy)
    order, energy = _sorted(energy)
    weights = np.sqrt(energy)
    if scheme is Scheme.SPARSE:
        return Levels(scheme, unit, order, weights, alpha, np.ones_like(alpha))
    total = energy.sum()
    wanted = np.arange(1, len(order) + 1)
    kept, tail = _saturation(weights, wanted)
    # Σ g²/p: what is kept for certain, and (Σ|g|)² / (T - k) of the others.
    sure = np.concatenate([[0.0], np.cumsum(energy)])[kept]
    rest = np.divide(tail**2, wanted - kept, out=np.zeros(len(order)), where=wanted > kept)
    alpha = np.minimum(1.0, total / (sure + rest))
    return Levels(scheme, unit, order, weights, alpha, alpha)


def sparse_alpha(energy: FloatArray) -> FloatArray:
    """Return alpha of sparsification, of the levels 1 to the number of units that are not zero.

    Args:
        energy: of the units, in any order.

    Raises:
        ValueError: as `measure_energy`.
    """
    if not np.isfinite(energy.sum()):
        raise ValueError("no level can be chosen from energies with NaN or infinity in them")
    largest_first = np.sort(energy)[::-1][: int(np.count_nonzero(energy))]
    if not len(largest_first):
        return largest_first
    alpha: FloatArray = np.minimum(1.0, np.cumsum(largest_first) / largest_first.sum())
    return alpha


def measure_signs(flat: Vector, energy: FloatArray, unit: int) -> Levels:
    """As `measure` for S+Q, of a flat gradient whose units have these energies."""
    importance, nonzero = kernels.norms(flat, unit)
    order, weights = _sorted(importance)
    norm = float(np.sqrt(energy.sum()))
    if norm == 0.0:  # as of zeros: the squares are too small for a float64
        order, weights = order[:0], weights[:0]
    # Only elements that are not zero have a sign to send.
    elements = np.cumsum(nonzero[order])
    total = np.cumsum(weights)
    alpha = np.minimum(1.0, total**2 / (elements * norm**2))
    return Levels(Scheme.SIGNS, unit, order, weights, alpha, total / (elements * norm))


def _sorted(importance: FloatArray) -> tuple[IntArray, FloatArray]:
    """Indices and values of what is positive, largest first, equal ones by index."""
    order = np.argsort(-importance, kind="stable")
    order = order[: int(np.count_nonzero(importance))]
    return order, importance[order]


def _saturation(weights: FloatArray, levels: IntArray) -> tuple[IntArray, FloatArray]:
    """For each level, how many units have p = 1, and the sum of the other weights.

    With the k largest kept, lambda = (T - k) / tail_k; the next one stays below 1 while
    T < k + tail_k / weight_k =: bound_k. The bounds never fall, so that k is found by bisection.
    """
    tails = np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]])
    bounds = np.arange(len(weights)) + tails[:-1] / weights
    # Sums in floating point may miss by an ulp what algebra says of them.
    bounds = np.maximum.accumulate(bounds)
    kept = np.searchsorted(bounds, np.asarray(levels, dtype=np.float64), side="right")
    kept = np.minimum(kept, levels)
    return kept, tails[kept]


def choose(levels: Levels, cost: CostModel, encoding: Encoding) -> Choice:
    """The T that maximises alpha(T) / C(T), the smallest of equal ones; exact over all T.

    Searching all T costs O(d) after the sort. So the paper's early stop (affine cost) and its
    restriction to full packets are not needed. The tests confirm that the result obeys both.
    """
    return best_level(levels.alpha, cost, encoding)


def best_level(alpha: FloatArray, cost: CostModel, encoding: Encoding) -> Choice:
    """As `choose`, of the levels 1 to m by their alpha, shape (m,)."""
    if not len(alpha):
        return Choice(0, 0.0, 0.0)
    costs = cost.cost(np.arange(1, len(alpha) + 1), encoding)
    best = int(np.argmax(alpha / costs))
    return Choice(best + 1, float(alpha[best]), float(costs[best]))
