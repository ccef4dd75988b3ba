# SPDX-License-Identifier: Apache-2.0
"""Statistics by sums, beside scikit-learn's: naive Bayes, k-means, PCA, regressions."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from p4reduce.methods.in_process import InProcess, run
from parts import cut, fit, refusals
from worker_system import System

sklearn = pytest.importorskip("sklearn", reason="estimators need it")
from p4reduce.methods.kmeans import KMeans  # noqa: E402
from p4reduce.methods.linear import LinearRegression  # noqa: E402
from p4reduce.methods.logistic import LogisticRegression  # noqa: E402
from p4reduce.methods.naive_bayes import GaussianNB, MultinomialNB  # noqa: E402
from p4reduce.methods.pca import PCA, SubspaceDetector  # noqa: E402
from sklearn import (  # noqa: E402
    cluster,
    datasets,
    decomposition,
    linear_model,
    metrics,
    naive_bayes,
)

DIGITS = datasets.load_digits()
CANCER = datasets.load_breast_cancer()
DIABETES = datasets.load_diabetes(scaled=False)
WINE = datasets.load_wine()


def standard(samples: Any) -> Any:
    return (samples - samples.mean(axis=0)) / samples.std(axis=0)


def test_counts_of_naive_bayes_are_exact(system: System) -> None:
    theirs = naive_bayes.MultinomialNB().fit(DIGITS.data, DIGITS.target)
    bits = set()
    for ranks in (1, 4, 8):
        fitted = fit(system, ranks, MultinomialNB, DIGITS.data, DIGITS.target)
        for mine in fitted:
            assert (mine.class_count_ == theirs.class_count_).all()
            assert (mine.feature_count_ == theirs.feature_count_).all()
            bits.add(mine.feature_count_.tobytes() + mine.feature_log_prob_.tobytes())
        shares = fitted[-1].predict_proba(DIGITS.data)
        np.testing.assert_allclose(shares, theirs.predict_proba(DIGITS.data), atol=1e-9)
        assert (fitted[0].predict(DIGITS.data) == theirs.predict(DIGITS.data)).all()
    assert len(bits) == 1


def test_gaussian_naive_bayes(system: System) -> None:
    theirs = naive_bayes.GaussianNB().fit(CANCER.data, CANCER.target)
    bits = set()
    for ranks in (1, 4, 8):
        mine = fit(system, ranks, GaussianNB, CANCER.data, CANCER.target)[-1]
        np.testing.assert_allclose(mine.theta_, theirs.theta_, rtol=1e-9)
        np.testing.assert_allclose(mine.var_, theirs.var_, rtol=1e-9)
        assert (mine.predict(CANCER.data) == theirs.predict(CANCER.data)).all()
        bits.add(mine.theta_.tobytes() + mine.var_.tobytes())
    assert len(bits) == 1


def test_k_means_from_given_centres(system: System) -> None:
    first = DIGITS.data[:10]
    theirs = cluster.KMeans(10, init=first, n_init=1, tol=0, algorithm="lloyd").fit(DIGITS.data)
    bits = set()
    for ranks in (1, 4, 8):
        fitted = fit(system, ranks, lambda comm: KMeans(comm, 10, first, tol=0), DIGITS.data)
        labels = np.concatenate([mine.labels_ for mine in fitted])
        assert (labels == theirs.labels_).all()
        for mine in fitted:
            np.testing.assert_allclose(mine.cluster_centers_, theirs.cluster_centers_, atol=1e-9)
            assert (mine.counts_ == np.bincount(theirs.labels_)).all()
            assert mine.inertia_ == pytest.approx(theirs.inertia_)
            bits.add(mine.cluster_centers_.tobytes())
    assert len(bits) == 1


def test_first_centres_are_samples_and_do_not_depend_on_the_ranks(system: System) -> None:
    # 1, 4 and 8 ranks draw the same samples, or the ends would differ.
    ends = {
        pickle.dumps((mine.cluster_centers_.tolist(), mine.counts_.tolist(), mine.inertia_))
        for ranks in (1, 4, 8)
        for mine in fit(system, ranks, lambda comm: KMeans(comm, 10, random_state=3), DIGITS.data)
    }
    assert len(ends) == 1
    _, counts, inertia = pickle.loads(ends.pop())
    best = cluster.KMeans(10, n_init=10, random_state=0).fit(DIGITS.data).inertia_
    assert sum(counts) == len(DIGITS.data)
    assert best * 0.999 <= inertia <= best * 1.1


def test_an_empty_cluster_takes_the_farthest_sample(system: System) -> None:
    samples = np.array([[0.0], [1.0], [2.0], [40.0]])
    first = [[1.0], [500.0]]
    for mine in fit(system, 2, lambda comm: KMeans(comm, 2, first), samples):
        assert mine.cluster_centers_[:, 0].tolist() == [1.0, 40.0]
        assert mine.counts_.tolist() == [3, 1]


def test_principal_components(system: System) -> None:
    theirs = decomposition.PCA(5, svd_solver="full").fit(CANCER.data)
    for ranks in (1, 4, 8):
        mine = fit(system, ranks, lambda comm: PCA(comm, 5), CANCER.data)[0]
        np.testing.assert_allclose(mine.components_, theirs.components_, atol=1e-5)
        for name in ("explained_variance_", "explained_variance_ratio_", "mean_"):
            np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-5)
        back = mine.inverse_transform(mine.transform(CANCER.data))
        wanted = theirs.inverse_transform(theirs.transform(CANCER.data))
        np.testing.assert_allclose(back, wanted, atol=1e-6)


def test_the_detector_of_anomalies_is_as_good_as_one_process(system: System) -> None:
    normal = CANCER.data[CANCER.target == 1]
    scale = normal.mean(axis=0), normal.std(axis=0)
    normal, all_of_them = (normal - scale[0]) / scale[1], (CANCER.data - scale[0]) / scale[1]
    theirs = decomposition.PCA(8, svd_solver="full").fit(normal)
    left = all_of_them - theirs.inverse_transform(theirs.transform(all_of_them))
    area = metrics.roc_auc_score(CANCER.target == 0, (left**2).sum(axis=1))
    for mine in fit(system, 8, lambda comm: SubspaceDetector(comm, 8), normal):
        scores = mine.score_samples(all_of_them)
        assert abs(metrics.roc_auc_score(CANCER.target == 1, scores) - area) <= 1e-3
        assert ((mine.predict(all_of_them) == -1) == (scores < -mine.threshold_)).all()


def test_the_threshold_holds_for_gaussian_samples(system: System, rng: np.random.Generator) -> None:
    samples = rng.standard_normal((20_000, 10)) * np.linspace(3, 0.5, 10)
    mine = fit(system, 2, lambda comm: SubspaceDetector(comm, 4, 0.01), samples)[0]
    assert 0.007 < (mine.predict(samples) == -1).mean() < 0.013


def test_linear_regression(system: System) -> None:
    wanted = {
        0.0: linear_model.LinearRegression().fit(DIABETES.data, DIABETES.target),
        2.0: linear_model.Ridge(2.0).fit(DIABETES.data, DIABETES.target),
    }
    for ranks in (1, 4, 8):
        for alpha, theirs in wanted.items():
            mine = fit(
                system,
                ranks,
                lambda comm: LinearRegression(comm, alpha),  # noqa: B023
                DIABETES.data,
                DIABETES.target,
            )[0]
            np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-5)
            assert mine.intercept_ == pytest.approx(theirs.intercept_, rel=1e-5)
            score = theirs.score(DIABETES.data, DIABETES.target)
            assert mine.score(DIABETES.data, DIABETES.target) == pytest.approx(score)


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_features_of_very_different_units(alpha: float, rng: np.random.Generator) -> None:
    """A country's inhabitants and a rate, say: none is lost beside the other's squares."""
    samples = rng.standard_normal((100, 3)) * [1e9, 1.0, 1e-6]
    targets = samples @ [1e-9, 1.0, 1e6] + rng.standard_normal(100)
    theirs = linear_model.Ridge(alpha, solver="svd").fit(samples, targets)

    def work(comm: InProcess) -> LinearRegression:
        mine = slice(comm.rank, None, 2)
        return LinearRegression(comm, alpha).fit(samples[mine], targets[mine])

    mine = run(2, work)[0]
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-5)


def test_a_power_of_two_as_a_features_unit_changes_no_digit(rng: np.random.Generator) -> None:
    """Even where squares would be infinite."""
    samples, targets = rng.standard_normal((50, 3)), rng.standard_normal(50)
    unit = np.ldexp(1.0, [800, 0, -800])
    plain, scaled = (
        run(1, lambda comm: LinearRegression(comm).fit(some, targets))[0].coef_  # noqa: B023
        for some in (samples, samples * unit)
    )
    assert (scaled * unit).tolist() == plain.tolist()


def test_without_an_intercept(system: System) -> None:
    theirs = linear_model.LinearRegression(fit_intercept=False).fit(DIABETES.data, DIABETES.target)
    mine = fit(
        system,
        2,
        lambda comm: LinearRegression(comm, fit_intercept=False),
        DIABETES.data,
        DIABETES.target,
    )[1]
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-5)
    assert mine.intercept_ == 0


@pytest.mark.parametrize("data", [CANCER, WINE], ids=["two classes", "three classes"])
def test_logistic_regression(system: System, data: Any) -> None:
    samples = standard(data.data)
    solver = "newton-cholesky" if data is CANCER else "lbfgs"
    theirs = linear_model.LogisticRegression(solver=solver, tol=1e-11, max_iter=10_000)
    theirs.fit(samples, data.target)
    for ranks in (1, 4, 8):
        mine = fit(system, ranks, LogisticRegression, samples, data.target)[-1]
        np.testing.assert_allclose(mine.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(mine.intercept_, theirs.intercept_, atol=1e-5)
        np.testing.assert_allclose(
            mine.predict_proba(samples), theirs.predict_proba(samples), atol=1e-5
        )


X, Y = standard(CANCER.data)[:40, :4], CANCER.target[:40]
ESTIMATORS: list[Any] = [GaussianNB, LinearRegression, LogisticRegression]


def broken(how: str) -> list[tuple[Any, ...]]:
    """Parts of three ranks, of which the last cannot be used."""
    parts = cut(3, X, Y)
    samples, targets = parts[2]
    if how == "no samples":
        samples, targets = samples[:0], targets[:0]
    elif how == "NaN":
        samples = samples.copy()
        samples[0, 1] = np.nan
    elif how == "other features":
        samples = samples[:, :3]
    elif how == "other targets":
        targets = targets[:-1]
    elif how == "no numbers":
        samples = np.full(samples.shape, "x")
    return [*parts[:2], (samples, targets)]


@pytest.mark.parametrize("make", ESTIMATORS)
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("no samples", "rank 2: X has no samples"),
        ("NaN", r"rank 2: X[0, 1] is nan"),
        ("other features", "rank 0 has features = 4, rank 2 has 3"),
        ("other targets", "rank 2: y has shape"),
        ("no numbers", "rank 2: X is not an array of numbers"),
    ],
)
def test_bad_input_of_one_rank_is_an_error_on_all(make: Any, how: str, text: str) -> None:
    (said,) = refusals(make, broken(how))
    assert text in said


@pytest.mark.parametrize("make", [PCA, KMeans], ids=["PCA", "k-means"])
def test_bad_samples_without_targets(make: Any) -> None:
    parts = [(samples,) for samples, _ in broken("NaN")]
    (said,) = refusals(make, parts)
    assert "rank 2: X[0, 1] is nan" in said


def test_singular_matrices_are_refused() -> None:
    for samples, text in (
        (np.column_stack([X, X[:, 0] + X[:, 1]]), "the matrix of 5 features is singular"),
        (np.column_stack([X, np.ones(len(X))]), "feature 4 is the same in all samples"),
        (np.column_stack([1e9 * X, X[:, 0] * 0 + 0.1]), "feature 4 is the same in all samples"),
    ):
        (said,) = refusals(LinearRegression, cut(2, samples, Y))
        assert text in said


@pytest.mark.parametrize(
    ("make", "parts", "text"),
    [
        (lambda comm: KMeans(comm, 50), [(X,)], "40 samples for 50 clusters"),
        (lambda comm: KMeans(comm, 3), [(X[:1].repeat(9, 0),)], "1 distinct samples"),
        (lambda comm: PCA(comm, 9), [(X,)], "n_components=9: 1 to 4"),
        (lambda comm: PCA(comm), [(X[:1],)], "one sample"),
        (lambda comm: SubspaceDetector(comm), [(X,)], "hold all variance"),
        (LogisticRegression, [(X, Y * 0)], "of one class, 0; at least two"),
        (lambda comm: LogisticRegression(comm, max_iter=1), [(X, Y)], "max_iter=1 steps"),
        (lambda comm: LogisticRegression(comm, C=0), [(X, Y)], "C and tol above 0"),
        (lambda comm: LinearRegression(comm, -1), [(X, Y)], "alpha=-1"),
        (MultinomialNB, [(X, Y)], "Negative values in data: X[0, "),
        (GaussianNB, [(X, Y + 0.5)], "Unknown label type: continuous"),
    ],
)
def test_what_cannot_be_fitted(make: Any, parts: Any, text: str) -> None:
    (said,) = refusals(make, parts)
    assert text in said
