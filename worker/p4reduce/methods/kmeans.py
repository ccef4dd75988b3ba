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
from p4reduce.methods.estimator import ClusterMixin, Estimator, Part
from p4reduce.methods.exact import Fixed, sum_integers
from p4reduce.methods.gathering import gather
from p4reduce.methods.meeting import problem_of_samples

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class KMeans(ClusterMixin, Estimator):
    """Clusters of samples around their means; as `sklearn.cluster.KMeans`.

    Attributes:
        cluster_centers_: shape (clusters, features).
        counts_: samples of each cluster on all ranks, int64; with weights their sums, float64.
        labels_: the cluster of each sample of this rank.
        inertia_: sum of squared distances to the centres, over all ranks, times the weights.
        n_iter_: iterations.
    """

    cluster_centers_: Floats
    counts_: Integers | Floats
    labels_: Integers
    inertia_: float
    n_iter_: int

    def __init__(
        self,
        comm: Comm | None = None,
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

    def fit(
        self, X: npt.ArrayLike, y: object = None, sample_weight: npt.ArrayLike | None = None
    ) -> KMeans:
        """Find the centres of this rank's and all others' samples.

        Args:
            X: this rank's part, shape (samples, features).
            y: ignored; for scikit-learn's pipelines.
            sample_weight: from 0 on, shape (samples,); None means ones.

        Raises:
            ValueError: on all ranks, if the input of one cannot be used.
        """
        part = self._begin(X, sample_weight=sample_weight)
        if part.count < self.n_clusters:
            raise ValueError(f"KMeans: {part.count} samples for {self.n_clusters} clusters")
        sums = _KMeansSums(part)
        rng = np.random.default_rng(self.random_state)
        centres = (
            sums.first(self.n_clusters, rng) if self.init is None else np.array(self.init, float)
        )
        still = self.tol * sums.mean_variance()
        self.n_iter_ = 0
        apart = np.inf
        while apart > still and self.n_iter_ < self.max_iter:
            self.n_iter_ += 1
            moved = sums.move(centres)
            apart = float(((moved - centres) ** 2).sum())
            centres = moved
        self.cluster_centers_ = centres
        self.labels_, distances = _nearest(sums.points, centres)
        counts = sums.within(self.labels_, self.n_clusters)[:, -1]
        self.counts_ = counts.astype(np.int64) if part.weights is None else counts
        self.inertia_ = float(sums.total(distances[:, None], "KMeans: inertia")[0])
        return self

    def predict(self, X: npt.ArrayLike) -> Integers:
        """Return the number of the nearest centre of each sample."""
        return _nearest(self._samples(X), self.cluster_centers_)[0]

    def _wrong(self, samples: Floats) -> str | None:
        if self.n_clusters < 1 or self.max_iter < 1 or not self.tol >= 0:
            return (
                f"n_clusters={self.n_clusters}, max_iter={self.max_iter}, tol={self.tol}: at "
                "least 1, 1 and 0 are needed"
            )
        if self.init is not None:
            wanted = self.n_clusters, samples.shape[1]
            centres, problem = problem_of_samples(self.init)
            if problem is not None:
                return problem.replace("X", "init", 1)
            if centres.shape != wanted:
                return f"init has shape {centres.shape}; {wanted} is needed"
        return super()._wrong(samples)


class _KMeansSums:
    """One rank's samples, and what the ranks sum of them.

    Attributes:
        points: the samples as they are measured, (samples, features).
    """

    def __init__(self, part: Part) -> None:
        self._part, self._comm = part, part.comm
        ones = np.ones((len(part.samples), 1))
        self._fixed = Fixed(
            part.comm, part.weighted(np.hstack([part.samples, ones])), part.count, "KMeans"
        )
        self.points = part.samples
        if part.weights is None:  # what travels and what is measured are the same numbers then
            self.points = self._fixed.floats(self._fixed.integers)[:, :-1]

    def total(self, values: Floats, name: str) -> Floats:
        """Return the sum of all ranks' weighted values, shape (samples, ...), over the samples."""
        fixed = Fixed(self._comm, self._part.weighted(values), self._part.count, name)
        return fixed.floats(sum_integers(self._comm, fixed.integers.sum(axis=0), name))

    def within(self, labels: Integers, clusters: int) -> Floats:
        """Return the sums of each cluster's samples, and of their weights as the last column."""
        mine = np.zeros((clusters, self._fixed.integers.shape[1]), np.int64)
        np.add.at(mine, labels, self._fixed.integers)
        return self._fixed.floats(sum_integers(self._comm, mine, "KMeans: sums"))

    def mean_variance(self) -> float:
        """Return the mean of the features' variances."""
        mine = self._fixed.integers.sum(axis=0)
        sums = self._fixed.floats(sum_integers(self._comm, mine, "KMeans: mean"))
        squares = (self.points - sums[:-1] / sums[-1]) ** 2
        return float(self.total(squares, "KMeans: squares").mean() / sums[-1])

    def move(self, centres: Floats) -> Floats:
        """Return the means of the samples that are nearest to each centre."""
        labels, distances = _nearest(self.points, centres)
        sums = self.within(labels, len(centres))
        weights = sums[:, -1:]
        moved = np.where(weights > 0, sums[:, :-1] / np.where(weights > 0, weights, 1), centres)
        empty = np.flatnonzero(weights == 0)
        if len(empty):
            moved[empty] = self._farthest(distances, len(empty))
        return np.asarray(moved)

    def _farthest(self, distances: Floats, count: int) -> Floats:
        """Return the points of all ranks that are farthest from their centres."""
        if self._part.weights is not None:
            distances = distances * (self._part.weights > 0)
        mine = np.zeros((count, self.points.shape[1] + 1))
        which = np.argsort(-distances, kind="stable")[:count]
        mine[: len(which), 0] = distances[which]
        mine[: len(which), 1:] = self.points[which]
        of_all = gather(self._comm, mine, "KMeans: empty clusters")
        return np.asarray(of_all[np.argsort(-of_all[:, 0], kind="stable")[:count], 1:])

    def first(self, clusters: int, rng: np.random.Generator) -> Floats:
        """k-means++: each next centre is a sample, drawn by its squared distance to the others."""
        if self._part.weights is None:
            before = int(self._part.facts["samples"][: self._comm.rank].sum())
            chosen = int(rng.integers(self._part.count)) - before
        else:
            chosen = self._draw(self._part.weights, rng, 0)
        centres = [self._point(chosen)]
        distances = np.full(len(self.points), np.inf)
        for _ in range(1, clusters):
            distances = np.minimum(distances, ((self.points - centres[-1]) ** 2).sum(axis=1))
            chosen = self._draw(self._part.weighted(distances), rng, len(centres))
            centres.append(self._point(chosen))
        return np.stack(centres)

    def _draw(self, shares: Floats, rng: np.random.Generator, found: int) -> int:
        """Return the index of a sample drawn by its share; out of range if another rank has it.

        Raises:
            ValueError: on all ranks, if all shares are 0 after so many centres.
        """
        ends = np.cumsum(Fixed(self._comm, shares, self._part.count, "KMeans: weights").integers)
        of_all = gather(self._comm, ends[-1:], "KMeans: weights of ranks")
        if not of_all.sum():
            raise ValueError(f"KMeans: the ranks have {found} distinct samples; more are needed")
        drawn = int(rng.integers(int(of_all.sum()))) - int(of_all[: self._comm.rank].sum())
        return int(np.searchsorted(ends, drawn, "right")) if drawn >= 0 else -1

    def _point(self, chosen: int) -> Floats:
        """Return the point that one rank has at an index, where it is within the rank's points."""
        mine = np.zeros(self.points.shape[1])
        if 0 <= chosen < len(self.points):
            mine = self.points[chosen]
        # All others' are zeros: the sum has the bits.
        words = self._comm.allreduce(mine.view(np.int32), name="KMeans: a centre")
        return np.asarray(words).view(np.float64)


def _nearest(points: Floats, centres: Floats) -> tuple[Integers, Floats]:
    """Return the nearest centre of each point, and the squared distance to it.

    Distances are added up feature by feature: the same bits, however many points there are.
    """
    distances = np.zeros((len(points), len(centres)))
    for feature in range(points.shape[1]):
        distances += (points[:, feature, None] - centres[:, feature]) ** 2
    labels = distances.argmin(axis=1)
    return labels, distances[np.arange(len(points)), labels]
