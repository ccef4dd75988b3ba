# SPDX-License-Identifier: Apache-2.0
"""Gradient boosting by histograms that the switch adds up, as the data-parallel form of LightGBM.

Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", Annals of Statistics 29(5),
2001, algorithm 1. The second derivatives are those of Chen and Guestrin, "XGBoost", KDD 2016,
section 2.2. The histograms are in trees.py. Each rank has its own samples. Per level of a tree the
ranks exchange histograms, whose size does not depend on the number of samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Estimator
from p4reduce.methods.exact import Fixed, sum_integers
from p4reduce.methods.gathering import gather
from p4reduce.methods.meeting import (
    all_classes,
    meet,
    problem_of_samples,
    problem_of_targets,
)
from p4reduce.methods.trees import LANE, Bins, DecisionTree, Forest, Limits

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_BINNING_SAMPLES = 10_000  # that decide where bins end
_MOST_SAMPLES = 1 << 26  # more would leave a gradient less than 5 bits of a lane


class _Boosting(Estimator):
    """What classification and regression share: settings, and the loop over trees.

    Attributes:
        trees_: for each iteration, a tree for each output.
        baseline_: what is predicted without trees, (outputs,).
    """

    trees_: list[list[DecisionTree]]
    baseline_: Floats
    n_features_in_: int

    def __init__(
        self,
        comm: Comm,
        learning_rate: float = 0.1,
        max_iter: int = 100,
        max_leaf_nodes: int = 31,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_bins: int = 255,
        random_state: int = 0,
    ) -> None:
        """Keep the settings, which have the names and meanings of scikit-learn's.

        Args:
            comm: the ranks.
            learning_rate: what the leaves' values are multiplied by; above 0.
            max_iter: trees for each output.
            max_leaf_nodes: of a tree, at least 2. A tree grows a level at a time; where a level
                has more splits than there is room for, those of the largest gain are made.
            min_samples_leaf: on all ranks together.
            l2_regularization: on the leaves' values, from 0 on.
            max_bins: of a feature, 2 to 65,535.
            random_state: which 10,000 samples decide on the bins, where there are more.
        """
        self.comm = comm
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.max_bins = max_bins
        self.random_state = random_state

    def _begin(
        self, samples: Any, targets: Any, *, classes: bool
    ) -> tuple[Floats, npt.NDArray[Any], int]:
        """Take in this rank's part; return samples, targets and the number of all samples."""
        array, problem = problem_of_samples(samples)
        y, wrong = problem_of_targets(targets, len(array), classes=classes)
        problem = problem or wrong or self._wrong()
        features = array.shape[1] if array.ndim == 2 else 0
        facts = {"samples": len(array), "features": features}
        name = type(self).__name__
        gathered = meet(
            self.comm, name, problem, facts, same=("features",), settings=self._settings()
        )
        total = int(gathered["samples"].sum())
        if total > _MOST_SAMPLES:
            raise ValueError(f"{name}: {total:,} samples; up to {_MOST_SAMPLES:,} are possible")
        self._parts = gathered["samples"]
        self.n_features_in_ = features
        return array, y, total

    def _wrong(self) -> str | None:
        needed = (
            ("learning_rate", "above 0", 0 < self.learning_rate < math.inf),
            ("max_iter", "at least 1", self.max_iter >= 1),
            ("max_leaf_nodes", "at least 2", self.max_leaf_nodes >= 2),
            ("min_samples_leaf", "at least 1", self.min_samples_leaf >= 1),
            ("l2_regularization", "at least 0", 0 <= self.l2_regularization < math.inf),
            ("max_bins", "2 to 65,535", 2 <= self.max_bins <= 65_535),
        )
        for setting, what, holds in needed:
            if not holds:
                return f"{setting}={getattr(self, setting)!r}: {what} is needed"
        return None

    def _boost(self, array: Floats, y: Floats, total: int, largest: float) -> None:
        """Grow the trees.

        Args:
            array: this rank's samples.
            y: their targets, (outputs, samples).
            total: samples on all ranks.
            largest: what gradients are cut off at, and no curvature exceeds; the same on all ranks.
        """
        name = type(self).__name__
        bins = Bins(self._binning_samples(array, total), self.max_bins)
        limits = Limits(self.max_leaf_nodes, self.min_samples_leaf, self.l2_regularization)
        forest = Forest(self.comm, bins, bins.of(array), limits, f"{name}: histograms")
        unit = math.ldexp(1, _unit(largest, total))
        raw = np.repeat(self.baseline_[:, None], len(array), axis=1)
        self.trees_ = []
        for _ in range(self.max_iter):
            gradients, curvatures = self._derivatives(raw, y)
            whole = np.rint(gradients.clip(-largest, largest) / unit).astype(np.int64)
            curved = None if curvatures is None else np.rint(curvatures / unit).astype(np.int64)
            trees, values = forest.grow(whole, curved, unit, self.learning_rate)
            self.trees_.append(trees)
            raw += values

    def _binning_samples(self, array: Floats, total: int) -> Floats:
        """Return samples of all ranks, the same on all: all of them, or some drawn at random."""
        ends = np.cumsum(self._parts)
        rng = np.random.default_rng(self.random_state)
        chosen = np.arange(total)
        if total > _BINNING_SAMPLES:
            chosen = np.sort(rng.choice(total, _BINNING_SAMPLES, replace=False))
        edges = np.searchsorted(chosen, np.concatenate([[0], ends]))
        first, stop = edges[self.comm.rank : self.comm.rank + 2]
        mine = array[chosen[first:stop] - (ends - self._parts)[self.comm.rank]]
        counts = np.diff(edges).tolist()
        return gather(self.comm, mine, f"{type(self).__name__}: bins", counts)

    def _derivatives(self, raw: Floats, y: Floats) -> tuple[Floats, Floats | None]:
        """Return the loss's derivatives by the predictions, and the second ones or None for 1."""
        raise NotImplementedError

    def _raw(self, samples: npt.ArrayLike) -> Floats:
        """Return the sum of the trees, (outputs, samples)."""
        array = self._samples(samples, self.n_features_in_)
        raw = np.repeat(self.baseline_[:, None], len(array), axis=1)
        for trees in self.trees_:
            for output, tree in enumerate(trees):
                raw[output] += tree.predict(array)
        return raw


class HistGradientBoostingClassifier(_Boosting):
    """Boosted trees for classes; as `sklearn.ensemble.HistGradientBoostingClassifier`.

    Attributes:
        classes_: the classes, shape (classes,).
    """

    classes_: Integers

    def fit(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> HistGradientBoostingClassifier:
        """Grow the trees on all ranks.

        Args:
            samples: this rank's part, shape (samples, features).
            targets: classes as integers, shape (samples,); a rank need not have all of them.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or all samples are of one
                class.
        """
        array, labels, total = self._begin(samples, targets, classes=True)
        name = type(self).__name__
        self.classes_ = all_classes(self.comm, labels, name)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(
                f"{name}: all samples of all ranks are of class {self.classes_[0]}; at least two "
                "classes are needed"
            )
        which = np.searchsorted(self.classes_, labels)
        mine = np.bincount(which, minlength=count).astype(np.int64)
        shares = sum_integers(self.comm, mine, f"{name}: classes") / total
        if count == 2:
            self.baseline_ = np.log(shares[1:] / shares[:1])
            y = which[None].astype(np.float64)
        else:
            self.baseline_ = np.log(shares) - np.log(shares).mean()
            y = np.eye(count)[:, which]
        self._boost(array, y, total, 1.0)
        return self

    def _derivatives(self, raw: Floats, y: Floats) -> tuple[Floats, Floats | None]:
        shares = _probabilities(raw)
        return shares - y, shares * (1 - shares)

    def predict_proba(self, samples: npt.ArrayLike) -> Floats:
        """Return each class's probability, (samples, classes)."""
        shares = _probabilities(self._raw(samples))
        if len(shares) == 1:
            shares = np.concatenate([1 - shares, shares])
        return np.asarray(shares.T)

    def predict(self, samples: npt.ArrayLike) -> Integers:
        """Return the most probable class of each sample."""
        return np.asarray(self.classes_[self.predict_proba(samples).argmax(axis=1)])

    def score(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> float:
        """Return the share of samples that are of the class predicted."""
        return float((self.predict(samples) == np.asarray(targets)).mean())


class HistGradientBoostingRegressor(_Boosting):
    """Boosted trees for numbers; as `sklearn.ensemble.HistGradientBoostingRegressor`."""

    def fit(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> HistGradientBoostingRegressor:
        """Grow the trees on all ranks.

        Args:
            samples: this rank's part, shape (samples, features).
            targets: numbers, shape (samples,).

        Raises:
            ValueError: on all ranks, if the input of one cannot be used.
        """
        array, y, total = self._begin(samples, targets, classes=False)
        name = type(self).__name__
        fixed = Fixed(self.comm, y, total, name)
        sums = sum_integers(self.comm, fixed.integers.sum(keepdims=True), f"{name}: mean")
        self.baseline_ = fixed.floats(sums) / total
        # Predictions are means of targets, so they stay among them; a little beyond is allowed.
        most = np.abs(y - self.baseline_).max(keepdims=True)
        spread = float(gather(self.comm, most, f"{name}: spread").max())
        self._boost(array, y[None], total, 2 * spread or 1.0)
        return self

    def _derivatives(self, raw: Floats, y: Floats) -> tuple[Floats, Floats | None]:
        return raw - y, None

    def predict(self, samples: npt.ArrayLike) -> Floats:
        """Return the target of each sample."""
        return np.asarray(self._raw(samples)[0])

    def score(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> float:
        """Return the coefficient of determination R^2."""
        y = np.asarray(targets, float)
        left = ((y - self.predict(samples)) ** 2).sum()
        return float(1 - left / ((y - y.mean()) ** 2).sum())


def _unit(largest: float, total: int) -> int:
    """Return the exponent of the unit in which the sum of all gradients fits into an int32 lane."""
    _, exponent = math.frexp(largest)
    return exponent - (LANE.bit_length() - 1 - total.bit_length())


def _probabilities(raw: Floats) -> Floats:
    """Return the outputs' probabilities from their logits: one output means two classes."""
    if len(raw) == 1:
        return np.asarray(1 / (1 + np.exp(-raw)))
    likelihoods = np.exp(raw - raw.max(axis=0))
    return np.asarray(likelihoods / likelihoods.sum(axis=0))
