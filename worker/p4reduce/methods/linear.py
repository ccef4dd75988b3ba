# SPDX-License-Identifier: Apache-2.0
"""Linear regression by the normal equations, which are sums over samples.

Chu et al., "Map-Reduce for Machine Learning on Multicore", NeurIPS 2006, section 4: locally
weighted linear regression, with all weights 1. A = sum of x x^T and b = sum of x y; then A w = b.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Estimator, RegressorMixin
from p4reduce.methods.exact import Fixed, sum_floats, sum_integers, unit_exponents

Floats = npt.NDArray[np.float64]

_ROUNDING = 2.0**-50  # of a mean: what a feature that is the same in all samples differs by
SINGULAR = 1e12  # condition number, above which a solution would have no digit that is right


class LinearRegression(RegressorMixin, Estimator):
    """Least squares; as `sklearn.linear_model.LinearRegression`, and with a penalty as `Ridge`.

    Two sums: the means, then products of what is centred by them, both in a unit of each feature.
    What travels does not depend on the number of samples.

    Attributes:
        coef_: shape (features,).
        intercept_: 0 if there is none.
    """

    coef_: Floats
    intercept_: float

    def __init__(
        self, comm: Comm | None = None, alpha: float = 0.0, fit_intercept: bool = True
    ) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            alpha: of the penalty alpha * |coef|^2, from 0 on.
            fit_intercept: whether there is an intercept, on which there is no penalty.
        """
        self.comm = comm
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> LinearRegression:
        """Fit this rank's and all others' samples.

        Args:
            X: this rank's part, shape (samples, features).
            y: numbers, shape (samples,).
            sample_weight: from 0 on, shape (samples,); None means ones.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or the matrix of the
                normal equations is singular.
        """
        part = self._begin(X, y, sample_weight)
        features = part.samples.shape[1]
        both = np.column_stack([part.samples, part.targets])
        mean = np.zeros(features + 1)
        if self.fit_intercept:
            fixed = Fixed(part.comm, part.weighted(both), part.count, "LinearRegression: means")
            mine = fixed.integers.sum(axis=0)
            sums = fixed.floats(sum_integers(part.comm, mine, "LinearRegression: sums"))
            mean = sums / part.total
        apart = both - mean
        apart[np.abs(apart) < _ROUNDING * np.abs(mean)] = 0.0
        # A sum has one unit: products of small features would be lost beside those of large ones.
        exponents = unit_exponents(part.comm, apart, part.count, "LinearRegression: units")
        scaled = np.ldexp(apart, -exponents)
        mine = scaled.T @ part.weighted(scaled)
        products = sum_floats(part.comm, mine, "LinearRegression: products")
        own, target = exponents[:features], exponents[features]
        matrix = products[:features, :features] + np.diag(np.ldexp(self.alpha, -2 * own))
        coefficients = solve(matrix, products[:features, features], "LinearRegression")
        self.coef_ = np.ldexp(coefficients, target - own)
        self.intercept_ = float(mean[features] - mean[:features] @ self.coef_)
        return self

    def _wrong(self, samples: Floats) -> str | None:
        if 0 <= self.alpha < np.inf:
            return None
        return f"alpha={self.alpha!r}: a number from 0 on is needed"

    def predict(self, X: npt.ArrayLike) -> Floats:
        """Return the target of each sample, shape (samples,)."""
        return np.asarray(self._samples(X) @ self.coef_ + self.intercept_)


def solve(matrix: Floats, right: Floats, method: str) -> Floats:
    """Solve equations of a matrix that is symmetric and positive definite.

    Raises:
        ValueError: it is singular, or as good as that.
    """
    # Features of different units must not look like a singular matrix.
    diagonal = np.sqrt(np.diagonal(matrix))
    if not (diagonal > 0).all():
        feature = int(np.flatnonzero(~(diagonal > 0))[0])
        raise ValueError(f"{method}: feature {feature} is the same in all samples: {HINT}")
    scaled = matrix / diagonal / diagonal[:, None]
    condition = float(np.linalg.cond(scaled))
    if not condition < SINGULAR:
        raise ValueError(
            f"{method}: the matrix of {len(matrix)} features is singular (condition number "
            f"{condition:.1e}): {HINT}"
        )
    return np.asarray(np.linalg.solve(scaled, right / diagonal) / diagonal)


HINT = "leave out features that depend on others, or take a penalty"
