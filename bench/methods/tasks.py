# SPDX-License-Identifier: Apache-2.0
"""The scorecard's tasks: what each rank has, and the least that the objective can be.

Gap = |Σ f_i(θ_i) − F*|, the "objective error" of the GADMM paper (arXiv 1909.00047).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from p4reduce.methods.problems import LeastSquares, Logistic, gadmm_synthetic, split_evenly
from p4reduce.methods.rank_data import Problem

Array = npt.NDArray[np.float64]
Parts = tuple[tuple[Array, Array], ...]
"""Features and targets of each rank, in order."""

PENALTY = 1e-3  # λ for breast cancer, whose loss is a mean
ALIKE = 0.1  # ξ of LAG-PS for ranks whose smoothness is about the same
STEEP_RANKS, STEEP = 16, 0.15  # from so many synthetic ranks on, ξ is so many times their square
SYNTHETIC_PENALTY = 1e-5  # λ of each rank, as the authors of GADMM have it; its loss is a sum


@dataclass(frozen=True)
class Task:
    """One task, all ranks' parts of it.

    Attributes:
        name: in the table.
        parts: what the ranks have.
        logistic: whether it is logistic regression, else least squares.
        penalty: λ of the whole objective.
        mean: whether the loss is the mean over all samples, else the sum; of logistic tasks.
        rho: ρ of the methods of multipliers, the best of a rough search.
        period: τ of D-GADMM.
        block_rate: of FedBCD's steps, times L: less where more parties have more in common.
        lag_ps_xi: ξ of LAG-PS: for ranks whose smoothness differs the best of a rough search, or
            its authors' 1 where they are few; else less.
    """

    name: str
    parts: Parts
    logistic: bool
    penalty: float
    mean: bool = False
    rho: dict[str, float] = field(default_factory=dict)
    period: int = 15
    block_rate: float = 0.2
    lag_ps_xi: float = 1.0

    @property
    def ranks(self) -> int:
        """World size."""
        return len(self.parts)

    @cached_property
    def features(self) -> Array:
        """All samples, shape (samples, d)."""
        return np.concatenate([features for features, _ in self.parts])

    @cached_property
    def targets(self) -> Array:
        """Of all samples."""
        return np.concatenate([targets for _, targets in self.parts])

    @property
    def weight(self) -> float:
        """Of each sample's loss."""
        return 1 / len(self.targets) if self.mean else 1.0

    @cached_property
    def problems(self) -> list[Problem]:
        """f_i of each rank; their sum is the objective."""
        return [self._problem(*part, self.penalty / self.ranks) for part in self.parts]

    @cached_property
    def whole(self) -> Problem:
        """The objective itself."""
        return self._problem(self.features, self.targets, self.penalty)

    def _problem(self, features: Array, targets: Array, penalty: float) -> Problem:
        if self.logistic:
            return Logistic(features, targets, penalty, self.weight)
        return LeastSquares(features, targets, penalty)

    @cached_property
    def solution(self) -> Array:
        """θ*, shape (d,): by the normal equations, or by Newton's method."""
        return self.whole.proximal(np.zeros(self.whole.size), 0.0)

    @cached_property
    def least(self) -> float:
        """F*."""
        return self.whole.value(self.solution)

    @cached_property
    def curvature(self) -> tuple[float, float]:
        """The largest eigenvalue of the Hessian anywhere, and the smallest one at the solution."""
        here = self.whole.hessian_product(self.solution, np.eye(self.whole.size))
        return self.whole.smoothness(), float(np.linalg.eigvalsh(here)[0])

    def gap(self, models: Sequence[Array]) -> float:
        """Of each rank's model θ_i, shape (d,)."""
        pairs = zip(self.problems, models, strict=True)
        return abs(sum(problem.value(model) for problem, model in pairs) - self.least)


def tasks(seed: int, ranks: tuple[int, int]) -> list[Task]:
    """All of them.

    Args:
        seed: of what is drawn: the synthetic data, and the order of the real samples.
        ranks: of the synthetic tasks, and of the real ones.
    """
    from sklearn.datasets import load_breast_cancer, load_diabetes

    synthetic, real = ranks
    linear = tuple(gadmm_synthetic(synthetic, seed))
    steep = STEEP * synthetic**2 if synthetic >= STEEP_RANKS else 1.0
    sugar, cancer = load_diabetes(scaled=False), load_breast_cancer()
    sugar_parts = _shuffled(_standard(sugar.data), _standard(sugar.target), real, seed)
    cancer_parts = _shuffled(_standard(cancer.data), 2.0 * cancer.target - 1, real, seed)
    return [
        Task("synthetic-linear", linear, False, 0.0, rho=_rho(5.0, 5.0, 5.0), lag_ps_xi=steep),
        Task("diabetes", sugar_parts, False, 0.0, rho=_rho(3.0, 30.0, 10.0), lag_ps_xi=ALIKE),
        Task(
            "synthetic-logistic",
            _synthetic_logistic(seed, synthetic),
            True,
            SYNTHETIC_PENALTY * synthetic,
            rho=_rho(0.03, 0.2, 0.05),
            lag_ps_xi=ALIKE,
        ),
        Task(
            "breast-cancer",
            cancer_parts,
            True,
            PENALTY,
            mean=True,
            rho=_rho(0.001, 0.01, 0.001),
            block_rate=0.5,
            lag_ps_xi=ALIKE,
        ),
    ]


def _rho(*each: float) -> dict[str, float]:
    return dict(zip(("admm", "gadmm", "dgadmm"), each, strict=True))


def _shuffled(features: Array, targets: Array, ranks: int, seed: int) -> Parts:
    order = np.random.default_rng(seed).permutation(len(features))
    return tuple(split_evenly(features[order], targets[order], ranks))


def _standard(array: Array) -> Array:
    return np.asarray((array - array.mean(axis=0)) / array.std(axis=0))


def _synthetic_logistic(seed: int, ranks: int) -> Parts:
    """The authors' samples with the same smoothness on all ranks.

    Labels are those of a model that is drawn too, one in ten of them wrong.
    """
    random = np.random.default_rng([seed, 1])
    model = 3 * random.standard_normal(50)
    parts = []
    for features, _ in gadmm_synthetic(ranks, seed, growth=1.0):
        right = np.where(random.random(len(features)) < 0.9, 1.0, -1.0)
        parts.append((features, right * np.sign(features @ model)))
    return tuple(parts)
