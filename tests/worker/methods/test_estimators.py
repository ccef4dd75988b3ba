# SPDX-License-Identifier: Apache-2.0
"""Estimators as scikit-learn wants them: its own checks, labels, weights, pickles, clones."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from p4reduce.methods.in_process import InProcess, outcomes_of, run
from parts import cut, fit, refusals
from worker_system import System

sklearn = pytest.importorskip("sklearn", reason="estimators need it")
import joblib  # noqa: E402
from p4reduce.methods.adanet import AdaNetClassifier  # noqa: E402
from p4reduce.methods.kmeans import KMeans  # noqa: E402
from p4reduce.methods.linear import LinearRegression  # noqa: E402
from p4reduce.methods.logistic import LogisticRegression  # noqa: E402
from p4reduce.methods.naive_bayes import GaussianNB, MultinomialNB  # noqa: E402
from p4reduce.methods.pca import PCA, SubspaceDetector  # noqa: E402
from sklearn import base, cluster, datasets, linear_model, metrics, naive_bayes  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

Make = Callable[..., Any]

ALONE = run(1, lambda comm: comm)[0]
# Checks that fail, and why.
OF_ALL = {
    "check_dtype_object": "bad input is a ValueError on all ranks, never a TypeError",
    "check_estimators_overwrite_params": "it copies the communicator, which holds sockets or locks",
    "check_set_params": "it copies the communicator, which holds sockets or locks",
}
EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"
CHECKED: list[tuple[Any, dict[str, str]]] = [
    (KMeans(ALONE, 3), {EQUIVALENCE: "it shuffles the samples, so k-means++ draws others"}),
    (PCA(ALONE), {}),
    (SubspaceDetector(ALONE, 1, 0.1), {}),
    (
        LinearRegression(ALONE),
        {
            EQUIVALENCE: "30 features of 15 samples are a singular matrix, which is refused",
            "check_fit2d_1sample": "one sample is a singular matrix, and the error says so",
        },
    ),
    (LinearRegression(ALONE, 1.0), {}),
    (LogisticRegression(ALONE), {}),
    (MultinomialNB(ALONE), {}),
    (GaussianNB(ALONE), {}),
    (AdaNetClassifier(ALONE, max_iter=2, width=16), {}),
]


@pytest.mark.skipif(
    not hasattr(sklearn.utils, "get_tags"), reason="checks of scikit-learn 1.5 ask for other tags"
)
@parametrize_with_checks([estimator for estimator, _ in CHECKED])
def test_by_scikit_learn(estimator: Any, check: Any) -> None:
    (own,) = (reasons for one, reasons in CHECKED if one is estimator)
    if check.func.__name__ in OF_ALL | own:
        with pytest.raises((AssertionError, TypeError, ValueError)):
            check(estimator)
    else:
        check(estimator)


DIGITS = datasets.load_digits()
CANCER = datasets.load_breast_cancer()
DIABETES = datasets.load_diabetes(scaled=False)
WINE = datasets.load_wine()
STANDARD = (WINE.data - WINE.data.mean(axis=0)) / WINE.data.std(axis=0)

WEIGHED: dict[str, tuple[Make, Any, Any, Any, dict[str, float]]] = {
    "MultinomialNB": (
        MultinomialNB,
        naive_bayes.MultinomialNB(),
        DIGITS.data,
        DIGITS.target,
        {"class_count_": 1e-9, "feature_count_": 1e-9, "feature_log_prob_": 1e-9},
    ),
    # Its `epsilon_` is that of the weighted samples, scikit-learn's is not.
    "GaussianNB": (
        lambda comm: GaussianNB(comm, 0.0),
        naive_bayes.GaussianNB(var_smoothing=0.0),
        CANCER.data,
        CANCER.target,
        {"class_count_": 1e-9, "theta_": 1e-9, "var_": 1e-9},
    ),
    "KMeans": (
        lambda comm: KMeans(comm, 10, DIGITS.data[:10], tol=0),
        cluster.KMeans(10, init=DIGITS.data[:10], n_init=1, tol=0, algorithm="lloyd"),
        DIGITS.data,
        DIGITS.target,
        {"cluster_centers_": 1e-9, "inertia_": 1e-9},
    ),
    "LinearRegression": (
        LinearRegression,
        linear_model.LinearRegression(),
        DIABETES.data,
        DIABETES.target,
        {"coef_": 1e-5, "intercept_": 1e-5},
    ),
    "Ridge": (
        lambda comm: LinearRegression(comm, 2.0, fit_intercept=False),
        linear_model.Ridge(2.0, fit_intercept=False),
        DIABETES.data,
        DIABETES.target,
        {"coef_": 1e-5},
    ),
    "LogisticRegression, two classes": (
        LogisticRegression,
        linear_model.LogisticRegression(solver="newton-cg", tol=1e-11),
        STANDARD,
        WINE.target == 1,
        {"coef_": 1e-5, "intercept_": 1e-5},
    ),
    "LogisticRegression, three classes": (
        LogisticRegression,
        linear_model.LogisticRegression(solver="newton-cg", tol=1e-11),
        STANDARD,
        WINE.target,
        {"coef_": 1e-5, "intercept_": 1e-5},
    ),
}

EXACT = ("MultinomialNB", "GaussianNB", "KMeans")  # the same bits for any number of ranks


def near(one: Any, other: Any, learnt: dict[str, float]) -> None:
    for name, tolerance in learnt.items():
        of_one, of_other = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(of_one, of_other, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", WEIGHED)
def test_weights_are_those_of_scikit_learn(rng: np.random.Generator, case: str) -> None:
    make, theirs, samples, targets, learnt = WEIGHED[case]
    weights = rng.uniform(0, 3, len(samples)) * rng.integers(0, 2, len(samples))
    theirs = base.clone(theirs).fit(samples, targets, sample_weight=weights)
    bits = set()
    for ranks in (1, 2, 3):
        for mine in fit(None, ranks, make, samples, targets, weights):
            near(mine, theirs, learnt)
            if case in EXACT:
                bits.add(b"".join(np.asarray(getattr(mine, name)).tobytes() for name in learnt))
        if hasattr(mine, "score"):
            score = theirs.score(samples, targets, sample_weight=weights)
            assert mine.score(samples, targets, sample_weight=weights) == pytest.approx(score)
    assert len(bits) == (case in EXACT)


@pytest.mark.parametrize("case", [*WEIGHED, "GaussianNB, smooth"])
def test_a_weight_is_a_number_of_copies(rng: np.random.Generator, case: str) -> None:
    make, _, samples, targets, learnt = WEIGHED[case.split(", smooth")[0]]
    if case == "GaussianNB, smooth":
        make = GaussianNB
    weights = rng.integers(0, 4, len(samples))
    weighted = fit(None, 2, make, samples, targets, weights)[1]
    copied = fit(None, 3, make, samples.repeat(weights, 0), targets.repeat(weights))[2]
    near(weighted, copied, learnt)


def test_over_the_switch(system: System, rng: np.random.Generator) -> None:
    weights = rng.uniform(0, 3, len(WINE.data))
    names = WINE.target_names.astype(object)[WINE.target]
    alone = fit(system, 1, GaussianNB, WINE.data, names, weights)[0]
    for mine in fit(system, 8, GaussianNB, WINE.data, names, weights):
        assert mine.var_.tobytes() == alone.var_.tobytes()
        assert (mine.classes_ == alone.classes_).all()


@pytest.mark.parametrize("case", WEIGHED)
def test_a_rank_without_weights_has_ones(rng: np.random.Generator, case: str) -> None:
    make, _, samples, targets, learnt = WEIGHED[case]
    (first, second) = cut(2, samples, targets, rng.uniform(0, 3, len(samples)))

    def work(comm: InProcess) -> list[Any]:
        parts = [(*second[:2], None), (*second[:2], np.ones(len(second[0])))]
        return [make(comm).fit(*(part if comm.rank else first)) for part in parts]

    for without, ones in run(2, work):
        for name in learnt:
            assert np.array_equal(getattr(without, name), getattr(ones, name))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda weights: -weights, "rank 2: sample_weight[0] is -1.0; a number from 0 on"),
        (lambda weights: weights * np.nan, "rank 2: sample_weight[0] is nan"),
        (lambda weights: weights * np.inf, "rank 2: sample_weight[0] is inf"),
        (lambda weights: weights[1:], "rank 2: sample_weight has shape"),
        (lambda weights: ["x"] * len(weights), "rank 2: sample_weight is not an array of numbers"),
    ],
)
@pytest.mark.parametrize("case", WEIGHED)
def test_wrong_weights_of_one_rank(case: str, bad: Any, text: str) -> None:
    make, _, samples, targets, _ = WEIGHED[case]
    parts = cut(3, samples, targets, np.ones(len(samples)))
    parts[2] = (*parts[2][:2], bad(parts[2][2]))
    (said,) = refusals(make, parts)
    assert text in said


def test_weights_that_are_all_zero() -> None:
    (said,) = refusals(LinearRegression, cut(2, DIABETES.data, DIABETES.target, np.zeros(442)))
    assert "the weights of all ranks add up to 0" in said
    # Of one rank they may be, and its labels are none then.
    labels = np.where(np.arange(178) < 150, WINE.target, 7)
    weights = np.where(labels == 7, 0.0, 1.0)

    def work(comm: InProcess) -> Any:
        mine = slice(150, None) if comm.rank else slice(150)
        return LogisticRegression(comm).fit(STANDARD[mine], labels[mine], weights[mine])

    alone = fit(None, 1, LogisticRegression, STANDARD[:150], WINE.target[:150])[0]
    for model in run(2, work):
        assert model.classes_.tolist() == [0, 1, 2]
        np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-7)


def test_a_sample_of_no_weight_is_no_centre() -> None:
    samples = np.array([[0.0], [1.0], [2.0], [40.0], [1000.0]])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    parts = cut(2, samples, samples[:, 0], weights)

    def work(comm: InProcess) -> None:
        for seed in range(10):
            drawn = KMeans(comm, 2, random_state=seed).fit(*parts[comm.rank])
            assert sorted(drawn.cluster_centers_[:, 0].tolist()) == [1.0, 40.0]
        # An empty cluster takes none either.
        given = KMeans(comm, 2, [[1.0], [5000.0]], max_iter=1).fit(*parts[comm.rank])
        assert given.cluster_centers_[:, 0].tolist() == [10.75, 40.0]
        assert given.counts_.tolist() == [3.0, 1.0]

    run(2, work)
    (said,) = refusals(lambda comm: KMeans(comm, 5), parts)
    assert "the ranks have 4 distinct samples" in said


def test_words_may_be_fractions(system: System, rng: np.random.Generator) -> None:
    samples = rng.uniform(0, 1, (60, 5)) * (rng.uniform(size=(60, 5)) < 0.5)
    samples[:30] = np.rint(samples[:30])  # one rank has whole numbers alone
    labels = rng.integers(0, 3, 60)
    theirs = naive_bayes.MultinomialNB().fit(samples, labels)
    parts = [(samples[:30], labels[:30]), (samples[30:], labels[30:])]
    for mine in run(2, lambda comm: MultinomialNB(comm).fit(*parts[comm.rank])):
        np.testing.assert_allclose(mine.feature_count_, theirs.feature_count_, rtol=1e-12)
        assert (mine.predict(samples) == theirs.predict(samples)).all()


CLASSIFIERS: list[Any] = [GaussianNB, MultinomialNB, LogisticRegression]
NAMES = ["Klasse null", "Süd 良", "z"]  # of different lengths, in letters and in bytes
KINDS: dict[str, Any] = {
    "strings": np.array(NAMES),
    "objects": np.array(NAMES, object),
    "int8": np.array([-3, 0, 100], np.int8),
    "uint64": np.array([1, 2, 2**64 - 1], np.uint64),
    "floats": np.array([-1.0, 0.0, 2.0]),
    "booleans": np.array([False, True, True]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", CLASSIFIERS)
def test_labels(make: Make, kind: str) -> None:
    labels = KINDS[kind][WINE.target]
    samples = np.abs(STANDARD)
    # In the order of the classes: the first rank has one of them, as the last.
    parts = [(samples[rows], labels[rows]) for rows in np.split(np.arange(178), [40, 140])]
    if kind == "strings":  # each as wide as its own need it
        parts = [(some, np.array(of_them.tolist())) for some, of_them in parts]
        assert len({of_them.dtype for _, of_them in parts}) > 1
    models = run(3, lambda comm: make(comm).fit(*parts[comm.rank]))
    (by_number,) = run(1, lambda comm: make(comm).fit(samples, KINDS[kind].searchsorted(labels)))
    for model in models:
        assert model.classes_.tolist() == sorted(set(labels.tolist()))
        predicted = model.predict(samples)
        assert predicted.dtype == labels.dtype
        np.testing.assert_allclose(
            model.predict_proba(samples), by_number.predict_proba(samples), atol=1e-9
        )
        assert model.score(samples, labels) == metrics.accuracy_score(labels, predicted) > 0.6


def test_labels_of_adanet() -> None:
    names = np.array(NAMES)
    labels = names[WINE.target]
    settings: dict[str, Any] = {"max_iter": 2, "width": 8}
    models = run(2, lambda comm: AdaNetClassifier(comm, **settings).fit(STANDARD, labels))
    numbers = run(2, lambda comm: AdaNetClassifier(comm, **settings).fit(STANDARD, WINE.target))
    for model, by_number in zip(models, numbers, strict=True):
        assert (model.predict(STANDARD) == names[by_number.predict(STANDARD)]).all()
    (said,) = refusals(AdaNetClassifier, [(STANDARD, labels), (STANDARD, labels[::-1])])
    assert "rank 0 has checksum of y" in said


@pytest.mark.parametrize("make", CLASSIFIERS)
@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.array(["a", "b"]), "rank 0 has integers as labels, rank 2 has strings"),
        (np.array([True, False]), "rank 0 has integers as labels, rank 2 has booleans"),
        (np.array([0.0, 1.0]), "rank 0 has integers as labels, rank 2 has floats"),
        (np.array([0.5, 1.0]), "rank 2: y cannot be used: Unknown label type"),
        (np.array(["a", 1], object), "rank 2: y cannot be used"),
        (
            np.array(["2026-01-01", "2027-01-01"], "M8[s]"),
            "rank 2: y has dtype datetime64[s]; bool",
        ),
        ([[1], [2, 3]], "rank 2: y cannot be used"),
        (None, "rank 2: y cannot be used"),
    ],
)
def test_labels_that_are_refused(make: Make, labels: Any, text: str) -> None:
    samples = np.array([[1.0, 2.0], [2.0, 1.0]])
    parts = [(samples, np.array([0, 1]))] * 2 + [(samples, labels)]
    (said,) = refusals(make, parts)
    assert text in said


FITTED: dict[str, tuple[Make, str]] = {
    "KMeans": (lambda comm: KMeans(comm, 3), "predict"),
    "PCA": (lambda comm: PCA(comm, 3), "transform"),
    "SubspaceDetector": (lambda comm: SubspaceDetector(comm, 3), "decision_function"),
    "LinearRegression": (LinearRegression, "predict"),
    "LogisticRegression": (LogisticRegression, "predict_proba"),
    "GaussianNB": (GaussianNB, "predict_proba"),
    "MultinomialNB": (MultinomialNB, "predict_proba"),
    "AdaNetClassifier": (lambda comm: AdaNetClassifier(comm, max_iter=2, width=4), "predict"),
}


def by_joblib(model: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


COPIES: dict[str, Make] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "joblib": by_joblib,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("by", COPIES)
@pytest.mark.parametrize("name", FITTED)
def test_pickles_and_copies_have_no_communicator(name: str, by: str) -> None:
    make, method = FITTED[name]
    samples = WINE.data

    def work(comm: InProcess) -> Any:
        return make(comm).fit(samples, WINE.target)

    model = run(2, work)[1]
    again = COPIES[by](model)
    wanted = getattr(model, method)(samples)
    assert (getattr(again, method)(samples) == wanted).all()
    assert (again.comm, model.comm.size) == (None, 2)
    with pytest.raises(ValueError, match=r"has no communicator.*set_params\(comm=\.\.\.\)"):
        again.fit(samples, WINE.target)

    def go_on(comm: InProcess) -> Any:
        return copy.copy(again).set_params(comm=comm).fit(samples, WINE.target)

    for fitted in run(2, go_on):
        assert (getattr(fitted, method)(samples) == wanted).all()


def test_parameters_and_clones() -> None:
    def work(comm: InProcess) -> None:
        first = KMeans(comm, 3, np.ones((3, 2)))
        again = base.clone(first).set_params(n_clusters=4)
        assert (first.n_clusters, again.n_clusters) == (3, 4)
        assert again.comm is comm
        assert again.init is not first.init
        assert repr(again).startswith(f"KMeans(comm=InProcess(rank={comm.rank}, size=2),\n")
        with pytest.raises(ValueError, match="Invalid parameter 'clusters'"):
            again.set_params(clusters=4)
        model = base.clone(again.set_params(init=None)).fit(STANDARD)
        assert model.n_features_in_ == 13

    run(2, work)


@pytest.mark.parametrize("name", FITTED)
def test_before_fit(name: str) -> None:
    make, method = FITTED[name]
    model = make(None)
    assert not hasattr(model, "n_features_in_")
    with pytest.raises(NotFittedError):
        getattr(model, method)(STANDARD)


def test_methods_of_the_mixins() -> None:
    parts = cut(2, STANDARD)

    def work(comm: InProcess) -> None:
        (mine,) = parts[comm.rank]
        clusters = KMeans(comm, 3)
        assert (clusters.fit_predict(mine) == clusters.labels_).all()
        reduced = PCA(comm, 2)
        coordinates = reduced.fit_transform(mine)
        assert (coordinates == reduced.transform(mine)).all()
        assert reduced.get_feature_names_out().tolist() == ["pca0", "pca1"]
        detector = SubspaceDetector(comm, 2, 0.4)
        judged = detector.fit_predict(mine)
        assert (judged == np.where(detector.score_samples(mine) < detector.offset_, -1, 1)).all()
        assert set(np.concatenate(comm.confer(judged))) == {-1, 1}

    run(2, work)


@pytest.mark.parametrize("name", FITTED)
def test_one_rank_predicts_alone(name: str) -> None:
    make, method = FITTED[name]

    def work(comm: InProcess) -> None:
        model = make(comm).fit(WINE.data, WINE.target)
        if comm.rank:
            getattr(model, method)(WINE.data)
            if hasattr(model, "score"):
                model.score(WINE.data, WINE.target)
        assert comm.allreduce(np.ones(1)) == 2

    assert outcomes_of(2, work) == [None, None]


WITHOUT = """
import importlib, pkgutil, sys
import p4reduce.methods
sys.modules["sklearn"] = None
for module in pkgutil.iter_modules(p4reduce.methods.__path__):
    try:
        importlib.import_module(f"p4reduce.methods.{module.name}")
    except ImportError as error:
        assert "pip install 'p4reduce[training]'" in str(error), error
        print(module.name)
"""


def test_only_estimators_need_scikit_learn() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    of_estimators = ["adanet", "estimator", "kmeans", "linear", "logistic", "naive_bayes", "pca"]
    assert done.stdout.split() == of_estimators
