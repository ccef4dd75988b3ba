# SPDX-License-Identifier: Apache-2.0
"""The tasks that methods solve: least squares and logistic regression, one part per rank.

A task is F(θ) = Σ f_i(θ), summed over ranks; rank i knows only f_i.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from p4reduce.methods._checks import real
from p4reduce.methods._communicator import Array
from p4reduce.methods.rank_data import Rows

NEWTON_STEPS = 200
NEWTON_TOLERANCE = 1e-12
LARGEST = 2.0**50
"""Of a sample's numbers: of the squares of more, no sum over samples fits into a lane's float."""


def _taken(features: Any, targets: Any) -> tuple[Array, Array, str]:
    """Return samples and targets as arrays, and why they are none; then empty ones."""
    try:
        return real(features), real(targets), ""
    except (TypeError, ValueError) as error:
        return np.zeros((0, 0)), np.zeros(0), f"the samples are not an array of numbers: {error}"


def _data_trouble(features: Array, targets: Array, regularisation: float) -> str:
    if features.ndim != 2 or targets.ndim != 1 or len(features) != len(targets):
        return (
            f"features have shape {features.shape} and targets {targets.shape}, "
            "where (samples, features) and (samples,) are needed"
        )
    if not len(features):
        return "there are no samples"
    if not features.shape[1]:
        return "there are no features"
    if not (np.isfinite(features).all() and np.isfinite(targets).all()):
        return "NaN or infinity is among the samples"
    largest = max(float(np.abs(features).max()), float(np.abs(targets).max()))
    if largest > LARGEST:
        return f"{largest:.3g} is among the samples: magnitudes up to {LARGEST:.3g} are possible"
    if not (math.isfinite(regularisation) and regularisation >= 0):
        return f"regularisation={regularisation:g}: a number from 0 on is needed"
    return ""


class LeastSquares:
    """f_i(θ) = ½‖Hθ − y‖² + λ/2·‖θ‖².

    Args:
        features: H, shape (samples, d).
        targets: y, shape (samples,).
        regularisation: λ of this rank's part, 0 or more.
    """

    def __init__(self, features: Array, targets: Array, regularisation: float = 0.0) -> None:
        self.features, self.targets, self._trouble = _taken(features, targets)
        self.regularisation = regularisation
        self.size = self.features.shape[-1] if self.features.ndim else 0
        self.samples = self.features.shape[0] if self.features.ndim else 0
        self._inverses: dict[float, Array] = {}
        if not self.trouble():
            h = self.features
            self._gram = _array(h.T @ h + regularisation * np.eye(self.size))
            self._moment = _array(h.T @ self.targets)

    def value(self, model: Array) -> float:
        """f_i(θ)."""
        rest = self.features @ model - self.targets
        return 0.5 * float(rest @ rest) + 0.5 * self.regularisation * float(model @ model)

    def gradient(self, model: Array) -> Array:
        """Hᵀ(Hθ − y) + λθ."""
        return _array(self._gram @ model - self._moment)

    def stochastic_gradient(self, model: Array, rows: Rows) -> Array:
        """Return an estimate of the gradient from some samples, unbiased over all rows."""
        h = self.features[rows]
        share = self.samples / len(rows)
        rest = h @ model - self.targets[rows]
        return _array(share * (h.T @ rest) + self.regularisation * model)

    def hessian_product(self, model: Array, direction: Array) -> Array:
        """(HᵀH + λI)·V."""
        return _array(self._gram @ direction)

    def smoothness(self) -> float:
        """The largest eigenvalue of HᵀH + λI."""
        return float(np.linalg.eigvalsh(self._gram)[-1])

    def proximal(self, linear: Array, quadratic: float) -> Array:
        """(HᵀH + (λ + quadratic)·I)⁻¹(Hᵀy + linear).

        Raises:
            ValueError: the matrix is singular.
        """
        if quadratic not in self._inverses:
            matrix = self._gram + quadratic * np.eye(self.size)
            if np.linalg.cond(matrix) > 1 / np.finfo(np.float64).eps:
                raise ValueError(
                    f"the matrix of the local solve is singular with a quadratic term of "
                    f"{quadratic:g}: a greater ρ or λ is needed"
                )
            self._inverses[quadratic] = _array(np.linalg.inv(matrix))
        return _array(self._inverses[quadratic] @ (self._moment + linear))

    def trouble(self) -> str:
        """Return what is wrong with the data; empty if nothing is."""
        return self._trouble or _data_trouble(self.features, self.targets, self.regularisation)


class Logistic:
    """f_i(θ) = w·Σ log(1 + exp(−y·hᵀθ)) + λ/2·‖θ‖², over samples h with labels y = ±1.

    Args:
        features: H, shape (samples, d).
        targets: y, shape (samples,), −1 or 1.
        regularisation: λ of this rank's part, 0 or more.
        weight: w of each sample: 1 for a sum, 1/N for a mean over N samples of all ranks.
    """

    def __init__(
        self,
        features: Array,
        targets: Array,
        regularisation: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        self.features, self.targets, self._trouble = _taken(features, targets)
        self.regularisation = regularisation
        self.weight = weight
        self.size = self.features.shape[-1] if self.features.ndim else 0
        self.samples = self.features.shape[0] if self.features.ndim else 0
        self._start = np.zeros(self.size)

    def value(self, model: Array) -> float:
        """f_i(θ)."""
        margins = self.targets * (self.features @ model)
        loss = self.weight * float(np.logaddexp(0.0, -margins).sum())
        return loss + 0.5 * self.regularisation * float(model @ model)

    def gradient(self, model: Array) -> Array:
        """−w·Hᵀ(y·σ(−y·Hθ)) + λθ."""
        pulls = self.targets * _sigmoid(-self.targets * (self.features @ model))
        return _array(self.regularisation * model - self.weight * (self.features.T @ pulls))

    def stochastic_gradient(self, model: Array, rows: Rows) -> Array:
        """Return an estimate of the gradient from some samples, unbiased over all rows."""
        h, y = self.features[rows], self.targets[rows]
        share = self.weight * self.samples / len(rows)
        pulls = y * _sigmoid(-y * (h @ model))
        return _array(self.regularisation * model - share * (h.T @ pulls))

    def hessian_product(self, model: Array, direction: Array) -> Array:
        """(w·Hᵀ diag(σ(1−σ)) H + λI)·V."""
        share = _sigmoid(self.features @ model)
        curvature = self.weight * share * (1 - share)
        inner = (self.features @ direction).T * curvature
        return _array(self.features.T @ inner.T + self.regularisation * direction)

    def smoothness(self) -> float:
        """w/4 of the largest eigenvalue of HᵀH, plus λ."""
        largest = float(np.linalg.norm(self.features, 2)) ** 2
        return 0.25 * self.weight * largest + self.regularisation

    def proximal(self, linear: Array, quadratic: float) -> Array:
        """Solve it by Newton's method with halved steps, from the last call's solution.

        Raises:
            ValueError: it does not converge, for example because there is no minimum.
        """
        model = self._start

        def value(at: Array) -> float:
            return self.value(at) - float(linear @ at) + 0.5 * quadratic * float(at @ at)

        for _ in range(NEWTON_STEPS):
            slope = self.gradient(model) - linear + quadratic * model
            if float(np.abs(slope).max()) <= NEWTON_TOLERANCE * (1 + float(np.abs(linear).max())):
                break
            matrix = self.hessian_product(model, np.eye(self.size)) + quadratic * np.eye(self.size)
            try:
                step = np.linalg.solve(matrix, slope)
            except np.linalg.LinAlgError:
                raise ValueError(
                    "the matrix of the local solve is singular: a greater ρ or λ is needed"
                ) from None
            size, here, fall = 1.0, value(model), float(slope @ step)
            if fall <= np.finfo(np.float64).eps * (1 + abs(here)):
                model = model - step  # which the value is too coarse to judge
                break
            while size > 1e-10 and value(model - size * step) > here - 1e-4 * size * fall:
                size /= 2
            if size <= 1e-10:
                break  # as near as rounding lets it come
            model = model - size * step
        if not np.isfinite(model).all():
            raise ValueError("the local solve has no finite minimum: a greater ρ or λ is needed")
        self._start = model
        return model

    def trouble(self) -> str:
        """Return what is wrong with the data; empty if nothing is."""
        if self._trouble:
            return self._trouble
        if trouble := _data_trouble(self.features, self.targets, self.regularisation):
            return trouble
        if not (math.isfinite(self.weight) and self.weight > 0):
            return f"weight={self.weight:g}: a positive number is needed"
        if not np.isin(self.targets, (-1.0, 1.0)).all():
            return "labels are not all -1 or 1"
        return ""


def _sigmoid(x: Array) -> Array:
    return _array(0.5 * (1 + np.tanh(0.5 * x)))


def _array(array: Any) -> Array:
    return np.asarray(array, np.float64)


def split_evenly(features: Array, targets: Array, ranks: int) -> list[tuple[Array, Array]]:
    """Split samples in order: (features, targets) of each rank.

    Args:
        features: shape (samples, d).
        targets: shape (samples,).
        ranks: the number of ranks.
    """
    return list(zip(np.array_split(features, ranks), np.array_split(targets, ranks), strict=True))


def gadmm_synthetic(ranks: int, seed: int, growth: float = 1.3) -> list[tuple[Array, Array]]:
    """The synthetic data of the GADMM paper (arXiv 1909.00047), which are also LAG's.

    Rank i (from 0) has H_i = growth^i·q_i·q_iᵀ + I, where the q_i are orthonormal: so the
    smoothness constants of ranks differ, by 10⁵ at 24 ranks. All have the same y. The authors take
    the first 50 targets of the Body Fat data, which are densities (aelgabli/GADMM,
    LinearRegression_Synthetic.m). Here y is drawn with their mean and spread.

    Args:
        ranks: at most 50.
        seed: of q and y.
        growth: 1.3 for the linear task. The logistic one takes 1.

    Returns:
        For each rank H_i of shape (50, 50) and y of shape (50,).
    """
    if not 1 <= ranks <= 50:
        raise ValueError(f"ranks={ranks}: this data is for 1 to 50 ranks")
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.standard_normal((50, 50)))
    y = random.normal(1.058, 0.0216, 50)  # g/cm³
    identity = np.eye(50)
    return [
        (growth**rank * np.outer(q[:, rank], q[:, rank]) + identity, y.copy())
        for rank in range(ranks)
    ]
