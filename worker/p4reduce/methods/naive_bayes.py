# SPDX-License-Identifier: Apache-2.0
"""Naive Bayes by sums over samples.

Chu, Kim, Lin, Yu, Bradski, Ng and Olukotun, "Map-Reduce for Machine Learning on Multicore",
NeurIPS 2006, section 4. Counts of classes and of features within classes are sums over samples. So
each rank adds up its own part, and one sum over the ranks ends the training. All of these sums are
exact here: the fitted attributes have the same bits for any number of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._checks import positive
from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Estimator
from p4reduce.methods.exact import Fixed, sum_integers
from p4reduce.methods.meeting import (
    all_classes,
    meet,
    problem_of_samples,
    problem_of_targets,
)

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class _NaiveBayes(Estimator):
    """What the two kinds share: classes, priors, and the rule of decision.

    Attributes:
        classes_: the classes, shape (classes,).
        class_count_: samples of each on all ranks, int64.
        class_log_prior_: logarithms of the classes' shares.
    """

    classes_: Integers
    class_count_: Integers
    class_log_prior_: Floats
    n_features_in_: int

    def predict(self, samples: npt.ArrayLike) -> Integers:
        """Return the most probable class of each sample."""
        return np.asarray(self.classes_[self._joint(samples).argmax(axis=1)])

    def predict_proba(self, samples: npt.ArrayLike) -> Floats:
        """Return each class's probability, shape (samples, classes)."""
        joint = self._joint(samples)
        likelihoods = np.exp(joint - joint.max(axis=1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=1, keepdims=True))

    def score(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> float:
        """Return the share of samples that are of the class predicted."""
        return float((self.predict(samples) == np.asarray(targets)).mean())

    def _joint(self, samples: npt.ArrayLike) -> Floats:
        """Return log P(class) + log P(sample given class), shape (samples, classes)."""
        raise NotImplementedError

    def _begin(
        self, comm: Comm, samples: Any, targets: Any, *, counts: bool
    ) -> tuple[Floats, Integers]:
        """Take in this rank's part; return the samples, and which class each is of."""
        name = type(self).__name__
        array, problem = problem_of_samples(samples)
        labels, wrong = problem_of_targets(targets, len(array), classes=True)
        problem = problem or wrong or self._wrong()
        if problem is None and counts:
            problem = _problem_of_counts(array, comm.size)
        features = array.shape[1] if array.ndim == 2 else 0
        facts = {"samples": len(array), "features": features}
        gathered = meet(comm, name, problem, facts, same=("features",), settings=self._settings())
        self.n_features_in_ = features
        self._total = int(gathered["samples"].sum())
        self.classes_ = all_classes(comm, labels, name)
        classes = np.searchsorted(self.classes_, labels)
        mine = np.bincount(classes, minlength=len(self.classes_)).astype(np.int64)
        self.class_count_ = sum_integers(comm, mine, f"{name}: classes' counts")
        self.class_log_prior_ = np.log(self.class_count_ / self._total)
        return array, classes

    def _wrong(self) -> str | None:
        """What is wrong with the settings."""
        raise NotImplementedError

    def _within(self, classes: Integers, values: Integers) -> Integers:
        """Return the sums of integers within each class, shape (classes, features)."""
        sums = np.zeros((len(self.classes_), values.shape[1]), np.int64)
        np.add.at(sums, classes, values)
        return sums


class MultinomialNB(_NaiveBayes):
    """Naive Bayes for counts, such as words; as `sklearn.naive_bayes.MultinomialNB`.

    Attributes:
        feature_count_: sums of each feature within each class, int64, (classes, features).
        feature_log_prob_: log((count + alpha) / (all counts of the class + alpha * features)).
    """

    feature_count_: Integers
    feature_log_prob_: Floats

    def __init__(self, comm: Comm, alpha: float = 1.0) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            alpha: what is added to each count (Laplace's smoothing); above 0.
        """
        self.comm = comm
        self.alpha = alpha

    def fit(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> MultinomialNB:
        """Count on all ranks.

        Args:
            samples: this rank's part, counts, shape (samples, features).
            targets: classes as integers, shape (samples,).

        Raises:
            ValueError: on all ranks, if the input of one cannot be used.
        """
        array, classes = self._begin(self.comm, samples, targets, counts=True)
        mine = self._within(classes, array.astype(np.int64))
        self.feature_count_ = sum_integers(self.comm, mine, "MultinomialNB: features' counts")
        smooth = self.feature_count_ + self.alpha
        self.feature_log_prob_ = np.log(smooth) - np.log(smooth.sum(axis=1, keepdims=True))
        return self

    def _wrong(self) -> str | None:
        return positive("alpha", self.alpha) or None

    def _joint(self, samples: npt.ArrayLike) -> Floats:
        array = self._samples(samples, self.n_features_in_)
        return np.asarray(array @ self.feature_log_prob_.T + self.class_log_prior_)


class GaussianNB(_NaiveBayes):
    """Naive Bayes for numbers; as `sklearn.naive_bayes.GaussianNB`.

    Attributes:
        theta_: the features' means within each class, (classes, features).
        var_: their variances, with `epsilon_` added.
        epsilon_: `var_smoothing` times the largest variance of a feature.
    """

    theta_: Floats
    var_: Floats
    epsilon_: float

    def __init__(self, comm: Comm, var_smoothing: float = 1e-9) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            var_smoothing: see `epsilon_`; from 0 on.
        """
        self.comm = comm
        self.var_smoothing = var_smoothing

    def fit(self, samples: npt.ArrayLike, targets: npt.ArrayLike) -> GaussianNB:
        """Add up over all ranks: first the values, then squared differences from their means.

        Args:
            samples: this rank's part, shape (samples, features).
            targets: classes as integers, shape (samples,).

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or a feature is the same
                number in all samples of a class and `var_smoothing` is 0.
        """
        comm = self.comm
        array, classes = self._begin(comm, samples, targets, counts=False)
        fixed = Fixed(comm, array, self._total, "GaussianNB")
        sums = sum_integers(comm, self._within(classes, fixed.integers), "GaussianNB: sums")
        counts = self.class_count_[:, None]
        self.theta_ = fixed.floats(sums) / counts
        mean = fixed.floats(sums.sum(axis=0)) / self._total

        apart = np.hstack([array - self.theta_[classes], array - mean]) ** 2
        squares = Fixed(comm, apart, self._total, "GaussianNB: squares")
        both = sum_integers(
            comm, self._within(classes, squares.integers), "GaussianNB: sums of squares"
        )
        within, _ = np.split(squares.floats(both), 2, axis=1)
        _, overall = np.split(squares.floats(both.sum(axis=0)), 2)
        self.epsilon_ = self.var_smoothing * float(overall.max() / self._total)
        self.var_ = within / counts + self.epsilon_
        if not (self.var_ > 0).all():
            at, feature = np.argwhere(self.var_ <= 0)[0].tolist()
            raise ValueError(
                f"GaussianNB: feature {feature} is the same in all samples of class "
                f"{self.classes_[at]}; var_smoothing above 0 is needed"
            )
        return self

    def _wrong(self) -> str | None:
        return (positive("var_smoothing", self.var_smoothing) if self.var_smoothing else "") or None

    def _joint(self, samples: npt.ArrayLike) -> Floats:
        array = self._samples(samples, self.n_features_in_)
        apart = (array[:, None] - self.theta_) ** 2 / self.var_
        constant = np.log(2 * np.pi * self.var_).sum(axis=1)
        return np.asarray(self.class_log_prior_ - 0.5 * (constant + apart.sum(axis=2)))


def _problem_of_counts(array: Floats, ranks: int) -> str | None:
    """Return what is wrong with a rank's counts, as the sum of all ranks has to be below 2^62."""
    wrong = (array < 0) | (array != np.rint(array))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        return f"X[{row}, {column}] is {array[row, column]:g}; counts from 0 on are needed"
    if array.sum() >= 2.0**62 / ranks:
        return f"the counts in X add up to {array.sum():.3g}; 2^62 is the most for all ranks"
    return None
