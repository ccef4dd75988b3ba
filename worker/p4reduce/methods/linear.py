# SPDX-License-Identifier: Apache-2.0
"""Linear regression by the normal equations, which are sums over samples.

Chu et al., "Map-Reduce for Machine Learning on Multicore", NeurIPS 2006, section 4: locally
weighted linear regression, with all weights 1. A = sum of x x^T and b = sum of x y; then A w = b.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Estimator
from p4reduce.methods.exact import sum_floats
from p4reduce.methods.meeting import meet, problem_of_samples, problem_of_targets

Floats = npt.NDArray[np.float64]

SINGULAR = 1e12  # condition number, above which a solution would have no digit that is right


class LinearRegression(Estimator):
    """Least squares; as `sklearn.linear_model.LinearRegression`, and with a penalty as `Ridge`.

    Two sums of floats: the means, then products of what is centred and scaled by them. What travels
    does not depend on the number of samples.

    Attributes:
        coef_: shape (features,).
        intercept_: 0 if there is none.
    """

    coef_: Floats
    intercept_: float

    def __init__(self, comm: Comm, alpha: float = 0.0, fit_intercept: bool = True) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            alpha: of the penalty alpha * |coef|^2, from 0 on.
            fit_intercept: whether there is an intercept, on which there is no penalty.
        """
        self.comm = comm
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    def fit(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> LinearRegression:
        """Fit this rank's and all others' samples.

        Args:
            samples: this rank's part, shape (samples, features).
            targets: numbers, shape (samples,).

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or the matrix of the
                normal equations is singular.
        """
        array, problem = problem_of_samples(samples)
        y, wrong = problem_of_targets(targets, len(array), classes=False)
        problem = problem or wrong
        if problem is None and not 0 <= self.alpha < np.inf:
            problem = f"alpha={self.alpha!r}: a number from 0 on is needed"
        features = array.shape[1] if array.ndim == 2 else 0
        facts, settings = {"samples": len(array), "features": features}, self._settings()
        gathered = meet(
            self.comm, "LinearRegression", problem, facts, same=("features",), settings=settings
        )
        both = np.column_stack([array, y])
        mean = np.zeros(features + 1)
        if self.fit_intercept:
            sums = sum_floats(self.comm, both.sum(axis=0), "LinearRegression: sums")
            mean = sums / int(gathered["samples"].sum())
        apart = both - mean
        products = sum_floats(self.comm, apart.T @ apart, "LinearRegression: products")
        matrix = products[:features, :features] + self.alpha * np.eye(features)
        self.coef_ = solve(matrix, products[:features, features], "LinearRegression")
        self.intercept_ = float(mean[features] - mean[:features] @ self.coef_)
        return self

    def predict(self, samples: npt.ArrayLike) -> Floats:
        """Return the target of each sample."""
        array = self._samples(samples, len(self.coef_))
        return np.asarray(array @ self.coef_ + self.intercept_)

    def score(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> float:
        """Return the coefficient of determination R^2."""
        y = np.asarray(targets, float)
        left = ((y - self.predict(samples)) ** 2).sum()
        return float(1 - left / ((y - y.mean()) ** 2).sum())


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
