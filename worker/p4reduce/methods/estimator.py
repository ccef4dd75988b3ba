# SPDX-License-Identifier: Apache-2.0
"""What the estimators share: scikit-learn's base classes, and input that all ranks agree on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4reduce.methods._checks import real
from p4reduce.methods._communicator import Comm
from p4reduce.methods.meeting import (
    LABELS,
    Facts,
    all_classes,
    checksum,
    meet,
    problem_of_samples,
)
from p4reduce.methods.subnetworks import softmax

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,
        OutlierMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        f"the estimators of p4reduce.methods need scikit-learn, which is not installed ({error}): "
        "pip install 'p4reduce[training]'",
        name=error.name,
    ) from error

__all__ = [
    "ClassNamePrefixFeaturesOutMixin",
    "Classifier",
    "ClusterMixin",
    "Estimator",
    "OutlierMixin",
    "Part",
    "RegressorMixin",
    "TransformerMixin",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_KINDS = ", ".join(sorted({*LABELS.values()}))
Self = TypeVar("Self", bound="Estimator")


@dataclass(frozen=True)
class Part:
    """One rank's input to `fit`, which all ranks have agreed to use.

    Attributes:
        comm: the ranks.
        samples: float64, shape (samples, features).
        targets: labels or float64, shape (samples,); empty if the estimator takes none.
        weights: float64, shape (samples,); None if no rank has weights.
        facts: of all ranks, by rank.
    """

    comm: Comm
    samples: Floats
    targets: npt.NDArray[Any]
    weights: Floats | None
    facts: Mapping[str, Facts]

    @property
    def count(self) -> int:
        """The number of samples on all ranks."""
        return int(self.facts["samples"].sum())

    @property
    def total(self) -> float:
        """The sum of the weights on all ranks; without weights the number of samples."""
        return float(np.ascontiguousarray(self.facts["weight"]).view(np.float64).sum())

    def weighted(self, values: Floats) -> Floats:
        """Return values, shape (samples, ...), times the weights; without weights the same."""
        if self.weights is None:
            return values
        return values * self.weights.reshape(-1, *[1] * (values.ndim - 1))


class Estimator(BaseEstimator):
    """An estimator of scikit-learn, fitted by all ranks together.

    `fit` is a collective: every rank calls it with its own part of the samples. What it learns is
    the same on all ranks, in attributes that end in "_". All other methods work on one rank, except
    `fit_predict` and `fit_transform`, which call `fit`.

    A clone has the same communicator. Copies and pickles have none, as it holds sockets.

    Attributes:
        comm: the ranks; None: `fit` is refused.
        n_features_in_: the number of features.
    """

    _same: tuple[str, ...] = ("features",)  # facts that must be equal on all ranks
    comm: Comm | None
    n_features_in_: int

    def __sklearn_clone__(self: Self) -> Self:
        bare = copy.copy(self)  # scikit-learn copies all arguments deeply
        clone: Self = super(Estimator, bare).__sklearn_clone__()
        clone.comm = self.comm
        return clone

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "comm": None}

    def _begin(self, X: Any, y: Any = None, sample_weight: Any = None) -> Part:
        """Check this rank's input together with all others'.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used; on this one, if it has no
                communicator.
        """
        name = type(self).__name__
        if self.comm is None:
            raise ValueError(
                f"{name} has no communicator, and copies and pickles have none: "
                "set_params(comm=...) sets one"
            )
        samples, problem = problem_of_samples(X)
        targets, wrong_targets = self._targets(y, len(samples))
        weights, wrong_weights = _problem_of_weights(sample_weight, len(samples))
        problem = problem or wrong_targets or wrong_weights or self._wrong(samples)
        facts = {
            "samples": len(samples),
            "features": samples.shape[1],
            "weighted": int(sample_weight is not None),
            "weight": int(weights.sum().view(np.int64)),
        }
        usable = (samples, targets) if problem is None else (np.zeros((0, 0)), np.zeros(0))
        facts |= self._facts(*usable)
        settings = self._settings()
        gathered = meet(self.comm, name, problem, facts, same=self._same, settings=settings)
        weighted = weights if gathered["weighted"].any() else None
        part = Part(self.comm, samples, targets, weighted, gathered)
        if not 0 < part.total < np.inf:
            raise ValueError(
                f"{name}: the weights of all ranks add up to {part.total:g}, which may be neither "
                "zero nor infinite"
            )
        self.n_features_in_ = samples.shape[1]
        return part

    def _targets(self, y: Any, samples: int) -> tuple[npt.NDArray[Any], str | None]:
        """Return targets, shape (samples,), and what is wrong with them."""
        labels = isinstance(self, ClassifierMixin)
        if not labels and not isinstance(self, RegressorMixin):
            return np.zeros(0), None
        try:
            array = column_or_1d(y, warn=True)
            if labels:
                check_classification_targets(array)
            else:
                array = real(array)
        except (TypeError, ValueError) as error:
            return np.zeros(0), f"y cannot be used: {error}"
        if array.shape != (samples,):
            return array, f"y has shape {array.shape}; {(samples,)} is needed, as X has samples"
        if labels:
            if array.dtype.kind not in LABELS:
                return array, f"y has dtype {array.dtype}; {_KINDS} are needed"
        elif not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array))[0])
            return array, f"y[{row}] is {array[row]}; NaN and infinity cannot be used"
        return array, None

    def _facts(self, samples: Floats, targets: npt.NDArray[Any]) -> dict[str, int]:
        """Return more about this rank's input, for all ranks to know."""
        return {}

    def _wrong(self, samples: Floats) -> str | None:
        """Return what is wrong with the settings, or with samples for them."""
        seed = getattr(self, "random_state", 0)
        if isinstance(seed, (int, np.integer)) and seed >= 0:
            return None
        return f"random_state={seed!r}: an integer from 0 on is needed, as all ranks draw the same"

    def _settings(self) -> dict[str, float]:
        """The arguments as numbers, for all ranks to have the same: see `meeting.meet`."""
        arguments = self.get_params().items()
        return {name: _number(value) for name, value in arguments if name != "comm"}

    def _samples(self, X: Any) -> Floats:
        """Return samples to predict for. Raises ValueError, before `fit` NotFittedError."""
        check_is_fitted(self)
        array, problem = problem_of_samples(X)
        if problem is not None:
            raise ValueError(problem)
        if array.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {array.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return array


class Classifier(ClassifierMixin, Estimator):
    """An estimator whose targets are labels: strings, integers, booleans or whole floats.

    Attributes:
        classes_: the labels of all ranks, ascending, shape (classes,), of the labels' dtype.
    """

    classes_: npt.NDArray[Any]

    def _classes(self, part: Part, least: int = 1) -> tuple[Part, Integers]:
        """Agree on the classes, of which there must be a number.

        Returns:
            The samples whose weight is not 0, and which class each is of.
        """
        if part.weights is not None:
            kept = part.weights > 0
            part = replace(
                part,
                samples=part.samples[kept],
                targets=part.targets[kept],
                weights=part.weights[kept],
            )
        name = type(self).__name__
        self.classes_ = all_classes(part.comm, part.targets, name)
        if len(self.classes_) < least:
            raise ValueError(
                f"{name}: all samples of all ranks are of one class, {self.classes_[0]}; at "
                "least two are needed"
            )
        return part, np.searchsorted(self.classes_, part.targets)

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the most probable class of each sample, shape (samples,)."""
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def predict_proba(self, X: npt.ArrayLike) -> Floats:
        """Return each class's probability, shape (samples, classes)."""
        return softmax(self._scores(X))

    def _scores(self, X: npt.ArrayLike) -> Floats:
        """Return what is largest for the most probable class, shape (samples, classes).

        They are logits unless the class has a `predict_proba` of its own.
        """
        raise NotImplementedError


def _number(value: Any) -> float:
    """Return a number for an argument; a checksum for an array, and for what is no number."""
    if value is None:
        return float("nan")
    try:
        if np.isscalar(value):
            return float(value)  # type: ignore[arg-type]  # or it raises
        return float(checksum(np.asarray(value, np.float64).tobytes()))
    except (TypeError, ValueError):
        return float(checksum(repr(value)))


def _problem_of_weights(sample_weight: Any, samples: int) -> tuple[Floats, str | None]:
    """Return weights, shape (samples,), and what is wrong with them; None means ones."""
    ones = np.ones(samples)
    if sample_weight is None:
        return ones, None
    try:
        weights = real(sample_weight)
    except (TypeError, ValueError) as error:
        return ones, f"sample_weight is not an array of numbers: {error}"
    if weights.shape != (samples,):
        return ones, f"sample_weight has shape {weights.shape}; {(samples,)} is needed"
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        row = int(wrong[0])
        return ones, f"sample_weight[{row}] is {weights[row]}; a number from 0 on is needed"
    return weights, None
