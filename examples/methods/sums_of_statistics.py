# SPDX-License-Identifier: Apache-2.0
"""Statistics by sums over ranks, beside scikit-learn's in one process. Run it with

p4reduce-lab exec -n 8 -- python examples/methods/sums_of_statistics.py
"""

from __future__ import annotations

import numpy as np
import p4reduce
from p4reduce.methods.kmeans import KMeans
from p4reduce.methods.linear import LinearRegression
from p4reduce.methods.logistic import LogisticRegression
from p4reduce.methods.naive_bayes import GaussianNB, MultinomialNB
from p4reduce.methods.pca import PCA
from sklearn import cluster, datasets, decomposition, linear_model, naive_bayes


def main() -> None:
    """Fits each estimator on parts of the samples, and once more on all of them."""
    digits, cancer = datasets.load_digits(), datasets.load_breast_cancer()
    diabetes = datasets.load_diabetes(scaled=False)
    standard = (cancer.data - cancer.data.mean(axis=0)) / cancer.data.std(axis=0)
    first = digits.data[:10]
    newton = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-11)
    lloyd = cluster.KMeans(10, init=first, n_init=1, tol=0)
    with p4reduce.init() as comm:
        cases = (
            (MultinomialNB(comm), naive_bayes.MultinomialNB(), digits, "feature_count_"),
            (GaussianNB(comm), naive_bayes.GaussianNB(), cancer, "var_"),
            (KMeans(comm, 10, first, tol=0), lloyd, digits, "cluster_centers_"),
            (PCA(comm, 5), decomposition.PCA(5, svd_solver="full"), cancer, "components_"),
            (LinearRegression(comm), linear_model.LinearRegression(), diabetes, "coef_"),
            (LogisticRegression(comm), newton, cancer, "coef_"),
        )
        for mine, theirs, data, learnt in cases:
            samples = standard if data is cancer else data.data
            part = np.array_split(np.arange(len(samples)), comm.size)[comm.rank]
            before = comm.stats.bytes_sent
            mine.fit(samples[part], data.target[part])
            sent = comm.stats.bytes_sent - before
            theirs.fit(samples, data.target)
            wanted = getattr(theirs, learnt)
            apart = np.abs(getattr(mine, learnt) - wanted).max() / np.abs(wanted).max()
            assert apart < 1e-5
            if comm.rank == 0:
                print(
                    f"{type(mine).__name__:20} {learnt:17} off by {apart:.0e} of the largest, "
                    f"{sent / 1e3:6.1f} kB sent per rank, samples are {samples.nbytes / 1e3:.0f} kB"
                )


if __name__ == "__main__":
    main()
