# SPDX-License-Identifier: Apache-2.0
"""Logistic regression by Newton's method, whose gradients and Hessians are sums over samples.

Chu et al., "Map-Reduce for Machine Learning on Multicore", NeurIPS 2006, section 4 (logistic
regression). Each rank adds up the gradient and the Hessian of its own samples. All ranks compute
the same step from the sums over the ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Classifier, Part
from p4reduce.methods.exact import sum_floats
from p4reduce.methods.subnetworks import softmax

Floats = npt.NDArray[np.float64]

_HALVINGS = 40  # of a step that does not lower the objective


class LogisticRegression(Classifier):
    """Logistic regression of two or more classes; as `sklearn.linear_model.LogisticRegression`.

    The objective is scikit-learn's: C * sum of the samples' losses + |coef|^2 / 2, in which the
    intercepts have no penalty. With k classes and d features, Hessians have ((d + 1) k)^2 / 2
    numbers, where two classes count as one. So this is for some hundred coefficients.

    Attributes:
        coef_: shape (classes, features), with two classes (1, features).
        intercept_: shape (classes,), with two classes (1,).
        n_iter_: the number of Newton steps.
        objective_: its final value.
    """

    coef_: Floats
    intercept_: Floats
    n_iter_: int
    objective_: float

    def __init__(
        self,
        comm: Comm | None = None,
        C: float = 1.0,
        max_iter: int = 100,
        tol: float = 1e-9,
    ) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            C: the inverse of the penalty's strength; above 0.
            max_iter: Newton steps at most.
            tol: it is over when no entry of the gradient is larger, relative to the samples.
        """
        self.comm = comm
        self.C = C
        self.max_iter = max_iter
        self.tol = tol

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> LogisticRegression:
        """Fit this rank's and all others' samples.

        Args:
            X: this rank's part, shape (samples, features).
            y: labels, shape (samples,); a rank need not have all of them.
            sample_weight: from 0 on, shape (samples,); None means ones.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, all samples are of one
                class, or `max_iter` steps were not enough.
        """
        part, which = self._classes(self._begin(X, y, sample_weight), least=2)
        classes = np.eye(len(self.classes_))[which]
        loss = _RankLoss(part, classes[:, 1:] if len(self.classes_) == 2 else classes)
        weights = self._newton(loss, part.total)
        self.coef_ = np.ascontiguousarray(weights[:-1].T)
        self.intercept_ = weights[-1].copy()
        return self

    def _wrong(self, samples: Floats) -> str | None:
        if self.C > 0 and self.max_iter >= 1 and self.tol > 0:
            return None
        return (
            f"C={self.C}, max_iter={self.max_iter}, tol={self.tol}: C and tol above 0 and "
            "max_iter of at least 1 are needed"
        )

    def _newton(self, part: _RankLoss, total: float) -> Floats:
        """Return weights, shape (features + 1, outputs), the intercepts last."""
        rows, outputs = part.samples.shape[1], part.targets.shape[1]
        weights = np.zeros((rows, outputs))
        penalised = np.repeat(np.arange(rows) < rows - 1, outputs).astype(float)
        # With more than two classes, the same number added to all intercepts changes nothing; the
        # steps that keep their sum are taken, as scikit-learn's are.
        idle = np.outer(1 - penalised, 1 - penalised) if outputs > 1 else 0.0
        objective = None
        for iteration in range(self.max_iter + 1):
            mine = part.derivatives(weights)
            loss, gradient, hessian = _sums(part.comm, *mine)
            flat = weights.reshape(-1)
            objective = self.C * loss + 0.5 * float((penalised * flat**2).sum())
            slope = self.C * gradient + penalised * flat
            if np.abs(slope).max() <= self.tol * self.C * total:
                self.n_iter_, self.objective_ = iteration, objective
                return weights
            curvature = self.C * hessian + np.diag(penalised) + idle
            step = np.linalg.solve(curvature, slope)
            weights = self._lower(part, weights, step.reshape(weights.shape), penalised, objective)
        raise ValueError(
            f"LogisticRegression: max_iter={self.max_iter} steps left a gradient of "
            f"{np.abs(slope).max():.1e}: features of similar size converge sooner"
        )

    def _lower(
        self, part: _RankLoss, weights: Floats, step: Floats, penalised: Floats, objective: float
    ) -> Floats:
        """Return the weights after a step, halved until the objective does not rise."""
        share = 1.0
        for _ in range(_HALVINGS):
            moved = weights - share * step
            loss = sum_floats(part.comm, np.array([part.loss(moved)]), "LogisticRegression: loss")
            reached = self.C * float(loss[0])
            reached += 0.5 * float((penalised * moved.reshape(-1) ** 2).sum())
            if reached <= objective + 1e-12 * abs(objective):
                break
            share /= 2
        return moved

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Return the logits, shape (samples, classes); of two classes the second's, (samples,)."""
        logits = self._samples(X) @ self.coef_.T + self.intercept_
        return np.asarray(logits[:, 0] if len(self.classes_) == 2 else logits)

    def predict_proba(self, X: npt.ArrayLike) -> Floats:
        """Return each class's probability, (samples, classes)."""
        logits = self.decision_function(X)
        if logits.ndim == 1:
            logits = np.column_stack([np.zeros_like(logits), logits])
        return softmax(logits)

    def _scores(self, X: npt.ArrayLike) -> Floats:
        return self.predict_proba(X)


class _RankLoss:
    """One rank's samples: their loss and its derivatives at given weights.

    Attributes:
        comm: the ranks.
        samples: with a 1 appended for the intercept, (samples, features + 1).
        targets: 0 or 1 per output, (samples, outputs); one output means two classes.
    """

    def __init__(self, part: Part, targets: Floats) -> None:
        self.comm, self._weighted = part.comm, part.weighted
        self.samples = np.column_stack([part.samples, np.ones(len(part.samples))])
        self.targets = targets

    def loss(self, weights: Floats) -> float:
        logits = self.samples @ weights
        if logits.shape[1] == 1:
            return float(self._weighted(np.logaddexp(0, logits) - self.targets * logits).sum())
        top = logits.max(axis=1, keepdims=True)
        whole = np.log(np.exp(logits - top).sum(axis=1, keepdims=True)) + top
        apart = whole - (self.targets * logits).sum(axis=1, keepdims=True)
        return float(self._weighted(apart).sum())

    def derivatives(self, weights: Floats) -> tuple[float, Floats, Floats]:
        """Return the loss, its gradient and its Hessian, with the weights flattened by rows."""
        logits = self.samples @ weights
        rows, outputs = weights.shape
        if outputs == 1:
            shares = softmax(np.column_stack([np.zeros(len(logits)), logits]))[:, 1:]
        else:
            shares = softmax(logits)
        gradient = self.samples.T @ self._weighted(shares - self.targets)
        hessian = np.zeros((rows, outputs, rows, outputs))
        for one in range(outputs):
            for other in range(one, outputs):
                both = self._weighted(shares[:, one] * ((one == other) - shares[:, other]))
                block = (self.samples * both[:, None]).T @ self.samples
                hessian[:, one, :, other] = hessian[:, other, :, one] = block
        size = rows * outputs
        return self.loss(weights), gradient.reshape(-1), hessian.reshape(size, size)


def _sums(
    comm: Comm, loss: float, gradient: Floats, hessian: Floats
) -> tuple[float, Floats, Floats]:
    """Return the sums over all ranks of the loss and its derivatives."""
    size = len(gradient)
    upper = np.triu_indices(size)
    mine = np.concatenate([[loss], gradient, hessian[upper]])
    sums = sum_floats(comm, mine, "LogisticRegression: derivatives")
    whole = np.zeros((size, size))
    whole[upper] = sums[1 + size :]
    return float(sums[0]), sums[1 : 1 + size], whole + np.triu(whole, 1).T
