# SPDX-License-Identifier: Apache-2.0
"""Principal components by sums, and a detector of anomalies in the residual.

Chu et al., "Map-Reduce for Machine Learning on Multicore", NeurIPS 2006, section 4 (PCA): the mean
and the covariance are sums over samples; the eigenvectors are then computed by every rank.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import (
    ClassNamePrefixFeaturesOutMixin,
    Estimator,
    OutlierMixin,
    TransformerMixin,
)
from p4reduce.methods.exact import sum_floats

Floats = npt.NDArray[np.float64]


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Principal components; as `sklearn.decomposition.PCA`.

    What travels is d + d(d+1)/2 numbers of 12 bytes for d features, however many samples there are.

    Attributes:
        components_: directions of the largest variance, rows of length 1, (components, features).
            The entry of the largest magnitude is positive.
        explained_variance_: the variance along each, with n - 1 in the denominator.
        explained_variance_ratio_: its share of all variance.
        mean_: of each feature.
        n_samples_: on all ranks.
    """

    components_: Floats
    explained_variance_: Floats
    explained_variance_ratio_: Floats
    mean_: Floats
    n_samples_: int

    def __init__(self, comm: Comm | None = None, n_components: int | None = None) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            n_components: how many to keep; None: as many as features.
        """
        self.comm = comm
        self.n_components = n_components

    def fit(self, X: npt.ArrayLike, y: object = None) -> PCA:
        """Compute the components of this rank's and all others' samples.

        Args:
            X: this rank's part, shape (samples, features).
            y: ignored; for scikit-learn's pipelines.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used, or there are fewer than
                two samples.
        """
        part = self._begin(X)
        features = part.samples.shape[1]
        keep = features if self.n_components is None else self.n_components
        self.n_samples_ = total = part.count
        if total < 2:
            name = type(self).__name__
            raise ValueError(f"{name}: all ranks together have one sample; two are needed")
        self.mean_ = sum_floats(part.comm, part.samples.sum(axis=0), "PCA: sums") / total
        apart = part.samples - self.mean_
        upper = np.triu_indices(features)
        scatter = np.zeros((features, features))
        scatter[upper] = sum_floats(part.comm, (apart.T @ apart)[upper], "PCA: products")
        scatter = scatter + np.triu(scatter, 1).T
        values, vectors = np.linalg.eigh(scatter / (total - 1))
        variances = np.maximum(values[::-1], 0)
        rows = vectors.T[::-1]
        greatest = np.abs(rows).argmax(axis=1)
        rows = rows * np.sign(rows[np.arange(features), greatest])[:, None]
        self.all_variances_ = variances
        self.components_ = rows[:keep]
        self.explained_variance_ = variances[:keep]
        self.explained_variance_ratio_ = variances[:keep] / max(variances.sum(), 1e-300)
        return self

    def _wrong(self, samples: Floats) -> str | None:
        features = samples.shape[1]
        if self.n_components is None or 1 <= self.n_components <= features:
            return None
        return f"n_components={self.n_components}: 1 to {features} are possible"

    @property
    def _n_features_out(self) -> int:
        """For scikit-learn's names of what `transform` returns."""
        return len(self.components_)

    def transform(self, X: npt.ArrayLike) -> Floats:
        """Return the samples' coordinates along the components, (samples, components)."""
        return np.asarray((self._samples(X) - self.mean_) @ self.components_.T)

    def inverse_transform(self, X: npt.ArrayLike) -> Floats:
        """Return the samples that have such coordinates, (samples, features)."""
        return np.asarray(np.asarray(X) @ self.components_ + self.mean_)


class SubspaceDetector(OutlierMixin, PCA):
    """Detects anomalies by their distance from the subspace of normal samples.

    Section 4 of Lakhina, Crovella and Diot, "Diagnosing Network-Wide Traffic Anomalies", SIGCOMM
    2004. The components of normal traffic span the normal subspace. The squared prediction error is
    the squared length of a sample's part outside of it, and is compared with a threshold. The ranks
    fit the subspace together; each judges its own samples.

    Attributes:
        threshold_: of the squared prediction error: normal samples exceed it with a probability of
            `false_alarms` if they are Gaussian (Jackson and Mudholkar, Technometrics 21(3), 1979).
        offset_: -threshold_, the least score of a normal sample.
    """

    threshold_: float
    offset_: float

    def __init__(
        self, comm: Comm | None = None, n_components: int | None = None, false_alarms: float = 1e-3
    ) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            n_components: of the normal subspace, less than there are features.
            false_alarms: see `threshold_`; above 0, below 1.
        """
        super().__init__(comm, n_components)
        self.false_alarms = false_alarms

    def fit(self, X: npt.ArrayLike, y: object = None) -> SubspaceDetector:
        """Learn the normal subspace from normal samples; see `PCA.fit`."""
        super().fit(X)
        left = self.all_variances_[len(self.components_) :]
        first, second, third = (float((left**power).sum()) for power in (1, 2, 3))
        if not second:
            raise ValueError(
                f"SubspaceDetector: {len(self.components_)} components of n_features="
                f"{self.n_features_in_} hold all variance; use fewer, so that variance is left to "
                "judge by"
            )
        # Jackson and Mudholkar, equations 3.2 to 3.4, as Lakhina et al. have them in section 5.1.
        shape = 1 - 2 * first * third / (3 * second**2)
        deviate = NormalDist().inv_cdf(1 - self.false_alarms)
        inner = deviate * np.sqrt(2 * second * shape**2) / first
        inner += 1 + second * shape * (shape - 1) / first**2
        self.threshold_ = float(first * inner ** (1 / shape))
        self.offset_ = -self.threshold_
        return self

    def _wrong(self, samples: Floats) -> str | None:
        if 0 < self.false_alarms < 1:
            return super()._wrong(samples)
        return f"false_alarms={self.false_alarms!r}: above 0 and below 1 is needed"

    def score_samples(self, X: npt.ArrayLike) -> Floats:
        """Return each sample's squared prediction error, negated: lower values are less normal."""
        array = self._samples(X)
        left = array - self.inverse_transform((array - self.mean_) @ self.components_.T)
        return -np.asarray((left**2).sum(axis=1))

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Return what each sample's score is above `offset_`; below 0 for anomalies."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return 1 for normal samples and -1 for anomalies."""
        return np.where(self.decision_function(X) < 0, -1, 1)
