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
from p4reduce.methods.estimator import Classifier, Part
from p4reduce.methods.exact import Fixed, sum_integers

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class _NaiveBayes(Classifier):
    """What the two kinds share: classes, priors, and the rule of decision.

    Attributes:
        class_count_: samples of each on all ranks, int64; with weights their sums, float64.
        class_log_prior_: logarithms of the classes' shares.
    """

    class_count_: Integers | Floats
    class_log_prior_: Floats

    def _count(self, part: Part) -> tuple[Part, Integers]:
        """Count the classes; return the samples, and which class each is of."""
        part, classes = self._classes(part)
        name = f"{type(self).__name__}: classes' counts"
        if part.weights is None:
            mine = np.bincount(classes, minlength=len(self.classes_)).astype(np.int64)
            self.class_count_ = sum_integers(part.comm, mine, name)
        else:
            fixed, sums = self._sums(part, classes, np.ones((len(classes), 1)), name)
            self.class_count_ = fixed.floats(sums)[:, 0]
        self.class_log_prior_ = np.log(self.class_count_ / self.class_count_.sum())
        return part, classes

    def _sums(
        self, part: Part, classes: Integers, values: Floats, name: str
    ) -> tuple[Fixed, Integers]:
        """Return the sums of all ranks' weighted values within each class, and their unit."""
        fixed = Fixed(part.comm, part.weighted(values), part.count, name)
        return fixed, sum_integers(part.comm, self._within(classes, fixed.integers), name)

    def _within(self, classes: Integers, values: Integers) -> Integers:
        """Return the sums of integers within each class, shape (classes, features)."""
        sums = np.zeros((len(self.classes_), values.shape[1]), np.int64)
        np.add.at(sums, classes, values)
        return sums


class MultinomialNB(_NaiveBayes):
    """Naive Bayes for counts, such as words; as `sklearn.naive_bayes.MultinomialNB`.

    Counts may be fractions, such as tf-idf.

    Attributes:
        feature_count_: sums of each feature within each class, (classes, features); int64 if all
            samples are whole numbers without weights, else float64.
        feature_log_prob_: log((count + alpha) / (all counts of the class + alpha * features)).
    """

    feature_count_: Integers | Floats
    feature_log_prob_: Floats

    def __init__(self, comm: Comm | None = None, alpha: float = 1.0) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            alpha: what is added to each count (Laplace's smoothing); above 0.
        """
        self.comm = comm
        self.alpha = alpha

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> MultinomialNB:
        """Count on all ranks.

        Args:
            X: this rank's part, numbers from 0 on, shape (samples, features).
            y: labels, shape (samples,).
            sample_weight: from 0 on, shape (samples,); None means ones.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used.
        """
        part, classes = self._count(self._begin(X, y, sample_weight))
        name = "MultinomialNB: features' counts"
        counts = part.facts["counts"].tolist()
        if part.weights is None and min(counts) >= 0 and sum(counts) < 2**62:
            mine = self._within(classes, part.samples.astype(np.int64))
            self.feature_count_ = sum_integers(part.comm, mine, name)
        else:
            fixed, sums = self._sums(part, classes, part.samples, name)
            self.feature_count_ = fixed.floats(sums)
        smooth = self.feature_count_ + self.alpha
        self.feature_log_prob_ = np.log(smooth) - np.log(smooth.sum(axis=1, keepdims=True))
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True  # on samples that are no counts; as scikit-learn's
        return tags

    def _facts(self, samples: Floats, targets: npt.NDArray[Any]) -> dict[str, int]:
        whole = (samples == np.rint(samples)).all()
        return {"counts": int(samples.sum()) if whole else -1}

    def _wrong(self, samples: Floats) -> str | None:
        if (samples < 0).any():
            row, column = np.argwhere(samples < 0)[0].tolist()
            return f"Negative values in data: X[{row}, {column}] is {samples[row, column]:g}"
        if samples.sum() >= 2.0**62:
            return f"the counts in X add up to {samples.sum():.3g}; less than 2^62 is needed"
        return positive("alpha", self.alpha) or None

    def _scores(self, X: npt.ArrayLike) -> Floats:
        return np.asarray(self._samples(X) @ self.feature_log_prob_.T + self.class_log_prior_)


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

    def __init__(self, comm: Comm | None = None, var_smoothing: float = 1e-9) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            var_smoothing: see `epsilon_`; from 0 on.
        """
        self.comm = comm
        self.var_smoothing = var_smoothing

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> GaussianNB:
        """Add up over all ranks: first the values, then squared differences from their means.

        Args:
            X: this rank's part, shape (samples, features).
            y: labels, shape (samples,).
            sample_weight: from 0 on, shape (samples,); None means ones. `epsilon_` is that of the
                weighted samples, unlike scikit-learn's.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or a feature is the same
                number in all samples of a class and `var_smoothing` is 0.
        """
        part, classes = self._count(self._begin(X, y, sample_weight))
        array, total = part.samples, self.class_count_.sum()
        fixed, sums = self._sums(part, classes, array, "GaussianNB: sums")
        counts = self.class_count_[:, None]
        self.theta_ = fixed.floats(sums) / counts
        mean = fixed.floats(sums.sum(axis=0)) / total

        apart = np.hstack([array - self.theta_[classes], array - mean]) ** 2
        squares, both = self._sums(part, classes, apart, "GaussianNB: sums of squares")
        within, _ = np.split(squares.floats(both), 2, axis=1)
        _, overall = np.split(squares.floats(both.sum(axis=0)), 2)
        self.epsilon_ = self.var_smoothing * float(overall.max() / total)
        self.var_ = within / counts + self.epsilon_
        if not (self.var_ > 0).all():
            at, feature = np.argwhere(self.var_ <= 0)[0].tolist()
            raise ValueError(
                f"GaussianNB: feature {feature} is the same in all samples of one class, "
                f"{self.classes_[at]}; var_smoothing above 0 is needed"
            )
        return self

    def _wrong(self, samples: Floats) -> str | None:
        return (positive("var_smoothing", self.var_smoothing) if self.var_smoothing else "") or None

    def _scores(self, X: npt.ArrayLike) -> Floats:
        apart = (self._samples(X)[:, None] - self.theta_) ** 2 / self.var_
        constant = np.log(2 * np.pi * self.var_).sum(axis=1)
        return np.asarray(self.class_log_prior_ - 0.5 * (constant + apart.sum(axis=2)))
