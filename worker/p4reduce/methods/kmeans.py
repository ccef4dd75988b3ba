# SPDX-License-Identifier: Apache-2.0
"""k-means by sums: Lloyd's iteration, in which each rank assigns its own samples.

Chu et al., "Map-Reduce for Machine Learning on Multicore", NeurIPS 2006, section 4 (k-means): the
new centres are sums over samples. Lloyd, IEEE Transactions on Information Theory 28(2), 1982; the
first centres as Arthur and Vassilvitskii, "k-means++", SODA 2007, algorithm 1.

Coordinates are rounded to integers of up to 62 bits, so sums are exact. Labels, counts and centres
have the same bits for any number of ranks that hold the same samples in the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Estimator
from p4reduce.methods.exact import Fixed, sum_integers
from p4reduce.methods.gathering import gather
from p4reduce.methods.meeting import meet, problem_of_samples

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class KMeans(Estimator):
    """Clusters of samples around their means; as `sklearn.cluster.KMeans`.

    Attributes:
        cluster_centers_: shape (clusters, features).
        counts_: samples of each cluster on all ranks, int64.
        labels_: the cluster of each sample of this rank.
        inertia_: sum of squared distances to the centres, over all ranks.
        n_iter_: iterations.
    """

    _arrays = ("init",)
    cluster_centers_: Floats
    counts_: Integers
    labels_: Integers
    inertia_: float
    n_iter_: int

    def __init__(
        self,
        comm: Comm,
        n_clusters: int = 8,
        init: npt.ArrayLike | None = None,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        """Keep the settings.

        Args:
            comm: the ranks.
            n_clusters: how many; at most as many as there are distinct samples.
            init: the first centres, (clusters, features), the same on all ranks; None: k-means++.
            max_iter: iterations at most.
            tol: the centres stand still when the sum of their squared moves is at most this times
                the mean of the features' variances.
            random_state: of k-means++; the same on all ranks.
        """
        self.comm = comm
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, samples: npt.ArrayLike, targets: object = None) -> KMeans:
        """Find the centres of this rank's and all others' samples.

        Args:
            samples: this rank's part, shape (samples, features).
            targets: ignored; for scikit-learn's pipelines.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used.
        """
        comm = self.comm
        array, problem = problem_of_samples(samples)
        features = array.shape[1] if array.ndim == 2 else 0
        facts = {"samples": len(array), "features": features}
        problem = problem or self._wrong(features)
        settings = self._settings()
        gathered = meet(comm, "KMeans", problem, facts, same=("features",), settings=settings)
        parts = gathered["samples"]
        if parts.sum() < self.n_clusters:
            raise ValueError(f"KMeans: {parts.sum()} samples for {self.n_clusters} clusters")
        self._fixed = Fixed(comm, array, int(parts.sum()), "KMeans")
        self._parts = parts
        # What travels and what is measured are the same numbers.
        points = self._fixed.floats(self._fixed.integers)
        centres = self._first_centres(points) if self.init is None else np.array(self.init, float)
        still = self.tol * self._mean_variance(points)
        self.n_iter_ = 0
        apart = np.inf
        while apart > still and self.n_iter_ < self.max_iter:
            self.n_iter_ += 1
            moved = self._move(points, centres)
            apart = float(((moved - centres) ** 2).sum())
            centres = moved
        self.cluster_centers_ = centres
        self.labels_, distances = _nearest(points, centres)
        counts, inertia = self._totals(self.labels_, distances)
        self.counts_, self.inertia_ = counts, inertia
        return self

    def predict(self, samples: npt.ArrayLike) -> Integers:
        """Return the number of the nearest centre of each sample."""
        array = self._samples(samples, self.cluster_centers_.shape[1])
        return _nearest(array, self.cluster_centers_)[0]

    def _wrong(self, features: int) -> str | None:
        if self.n_clusters < 1 or self.max_iter < 1 or not self.tol >= 0:
            return (
                f"n_clusters={self.n_clusters}, max_iter={self.max_iter}, tol={self.tol}: at "
                "least 1, 1 and 0 are needed"
            )
        if self.init is not None:
            centres, problem = problem_of_samples(self.init)
            if problem is not None:
                return problem.replace("X", "init", 1)
            if centres.shape != (self.n_clusters, features):
                return f"init has shape {centres.shape}; {(self.n_clusters, features)} is needed"
        return None

    def _mean_variance(self, points: Floats) -> float:
        total = int(self._parts.sum())
        sums = sum_integers(self.comm, self._fixed.integers.sum(axis=0), "KMeans: mean")
        squares = (points - self._fixed.floats(sums) / total) ** 2
        fixed = Fixed(self.comm, squares, total, "KMeans: squares")
        variances = sum_integers(self.comm, fixed.integers.sum(axis=0), "KMeans: variances")
        return float(fixed.floats(variances).mean() / total)

    def _move(self, points: Floats, centres: Floats) -> Floats:
        """Return the means of the samples that are nearest to each centre."""
        labels, distances = _nearest(points, centres)
        width = points.shape[1]
        mine = np.zeros((self.n_clusters, width + 1), np.int64)
        np.add.at(mine[:, :width], labels, self._fixed.integers)
        mine[:, width] = np.bincount(labels, minlength=self.n_clusters)
        sums = sum_integers(self.comm, mine, "KMeans: sums")
        counts = sums[:, width:]
        moved = np.where(
            counts > 0, self._fixed.floats(sums[:, :width]) / np.maximum(counts, 1), centres
        )
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            moved[empty] = self._farthest(points, distances, len(empty))
        return np.asarray(moved)

    def _farthest(self, points: Floats, distances: Floats, count: int) -> Floats:
        """Return the points of all ranks that are farthest from their centres."""
        mine = np.zeros((count, points.shape[1] + 1))
        which = np.argsort(-distances, kind="stable")[:count]
        mine[: len(which), 0] = distances[which]
        mine[: len(which), 1:] = points[which]
        of_all = gather(self.comm, mine, "KMeans: empty clusters")
        return np.asarray(of_all[np.argsort(-of_all[:, 0], kind="stable")[:count], 1:])

    def _totals(self, labels: Integers, distances: Floats) -> tuple[Integers, float]:
        mine = np.bincount(labels, minlength=self.n_clusters).astype(np.int64)
        counts = sum_integers(self.comm, mine, "KMeans: counts")
        fixed = Fixed(self.comm, distances, int(self._parts.sum()), "KMeans: inertia")
        inertia = sum_integers(self.comm, fixed.integers.sum(keepdims=True), "KMeans: inertia")
        return counts, float(fixed.floats(inertia)[0])

    def _first_centres(self, points: Floats) -> Floats:
        """k-means++: each next centre is a sample, drawn by its squared distance to the others."""
        comm, rng = self.comm, np.random.default_rng(self.random_state)
        total = int(self._parts.sum())
        first = int(self._parts[: comm.rank].sum())  # own samples' place in the order of all
        chosen = int(rng.integers(total)) - first
        centres = [self._point(points, chosen)]
        distances = np.full(len(points), np.inf)
        for _ in range(1, self.n_clusters):
            distances = np.minimum(distances, ((points - centres[-1]) ** 2).sum(axis=1))
            weights = Fixed(comm, distances, total, "KMeans: weights").integers
            ends = np.cumsum(weights)
            of_all = gather(comm, ends[-1:], "KMeans: weights of ranks")
            if not of_all.sum():
                raise ValueError(
                    f"KMeans: the ranks have {len(centres)} distinct samples for "
                    f"{self.n_clusters} clusters"
                )
            drawn = int(rng.integers(int(of_all.sum()))) - int(of_all[: comm.rank].sum())
            chosen = int(np.searchsorted(ends, drawn, "right")) if drawn >= 0 else -1
            centres.append(self._point(points, chosen))
        return np.stack(centres)

    def _point(self, points: Floats, chosen: int) -> Floats:
        """Return the point that one rank has at an index, where it is within the rank's points."""
        mine = np.zeros(points.shape[1], np.int64)
        if 0 <= chosen < len(points):
            mine = self._fixed.integers[chosen]
        return self._fixed.floats(sum_integers(self.comm, mine, "KMeans: a centre"))


def _nearest(points: Floats, centres: Floats) -> tuple[Integers, Floats]:
    """Return the nearest centre of each point, and the squared distance to it.

    Distances are added up feature by feature: the same bits, however many points there are.
    """
    distances = np.zeros((len(points), len(centres)))
    for feature in range(points.shape[1]):
        distances += (points[:, feature, None] - centres[:, feature]) ** 2
    labels = distances.argmin(axis=1)
    return labels, distances[np.arange(len(points)), labels]
