# SPDX-License-Identifier: Apache-2.0
"""Boosted trees: the same bits for any number of ranks, and as good as scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.methods.boosting import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from p4reduce.methods.in_process import run
from p4reduce.methods.trees import Bins
from parts import cut, fit, refusals
from worker_system import System

sklearn = pytest.importorskip("sklearn", reason="it is what the results are compared with")
import threadpoolctl  # noqa: E402  # which scikit-learn needs
from sklearn import datasets, ensemble, model_selection  # noqa: E402

CANCER = datasets.load_breast_cancer()
DIGITS = datasets.load_digits()
DIABETES = datasets.load_diabetes()


def trees(fitted: Any) -> str:
    """All of what was learnt, as text: floats in it are exact."""
    return repr((fitted.baseline_.tolist(), fitted.trees_))


@pytest.mark.parametrize(
    ("make", "data", "iterations"),
    [
        (HistGradientBoostingClassifier, CANCER, 15),
        (HistGradientBoostingClassifier, DIGITS, 2),
        (HistGradientBoostingRegressor, DIABETES, 15),
    ],
    ids=["two classes", "ten classes", "numbers"],
)
def test_trees_have_the_same_bits_for_any_number_of_ranks(
    system: System, make: Any, data: Any, iterations: int
) -> None:
    learnt = {
        trees(fitted)
        for ranks in (1, 4, 8)
        for fitted in fit(
            system, ranks, lambda comm: make(comm, max_iter=iterations), data.data, data.target
        )
    }
    assert len(learnt) == 1


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("data", [CANCER, DIGITS], ids=["two classes", "ten classes"])
def test_as_good_as_scikit_learn(data: Any) -> None:
    """Half a point of accuracy at most, over five parts; one rank, whose trees eight ranks have."""
    mine, theirs = [], []
    parts = model_selection.KFold(5, shuffle=True, random_state=0)
    for train, test in parts.split(data.data):
        known, unknown = (
            (data.data[train], data.target[train]),
            (data.data[test], data.target[test]),
        )
        (fitted,) = run(1, lambda comm: HistGradientBoostingClassifier(comm).fit(*known))  # noqa: B023
        mine.append(fitted.score(*unknown))
        with threadpoolctl.threadpool_limits(1):
            theirs.append(ensemble.HistGradientBoostingClassifier().fit(*known).score(*unknown))
    assert np.mean(mine) >= np.mean(theirs) - 0.005


def test_numbers_as_scikit_learn_predicts_them(system: System) -> None:
    settings = {"max_iter": 20, "max_leaf_nodes": 64}
    theirs = ensemble.HistGradientBoostingRegressor(**settings)
    with threadpoolctl.threadpool_limits(1):  # more of them wait for each other on a busy machine
        theirs.fit(DIABETES.data, DIABETES.target)
    (mine,) = fit(
        system,
        1,
        lambda comm: HistGradientBoostingRegressor(comm, **settings),
        DIABETES.data,
        DIABETES.target,
    )
    score = theirs.score(DIABETES.data, DIABETES.target)
    assert mine.score(DIABETES.data, DIABETES.target) == pytest.approx(score, abs=0.01)


def test_one_split_is_the_best_one(system: System, rng: np.random.Generator) -> None:
    """A tree of two leaves, beside a search over all splits that is written out."""
    samples = rng.integers(0, 6, (60, 3)).astype(float)
    targets = rng.standard_normal(60) + (samples[:, 1] > 2)
    settings: dict[str, Any] = {
        "max_iter": 1,
        "max_leaf_nodes": 2,
        "min_samples_leaf": 5,
        "l2_regularization": 0.5,
        "learning_rate": 1.0,
    }
    fitted = fit(
        system, 2, lambda comm: HistGradientBoostingRegressor(comm, **settings), samples, targets
    )[0]
    left_over = targets - targets.mean()
    found = []
    for feature in range(3):
        for threshold in np.arange(0.5, 5):
            left = samples[:, feature] <= threshold
            if min(left.sum(), (~left).sum()) >= 5:
                gain = sum(
                    left_over[side].sum() ** 2 / (side.sum() + 0.5) for side in (left, ~left)
                )
                found.append((gain, feature, threshold, left))
    _, feature, threshold, left = max(found, key=lambda one: one[0])
    tree = fitted.trees_[0][0]
    assert (tree.feature[0], tree.threshold[0]) == (feature, threshold)
    wanted = np.where(left, *(left_over[s].sum() / (s.sum() + 0.5) for s in (left, ~left)))
    np.testing.assert_allclose(fitted.predict(samples), wanted + targets.mean(), atol=1e-6)


def test_bins_of_many_numbers_have_equally_many_samples(rng: np.random.Generator) -> None:
    samples = rng.standard_normal((10_000, 1))
    bins = Bins(samples, 50)
    counts = np.bincount(bins.of(samples)[:, 0])
    assert len(counts) == 50
    assert set(counts.tolist()) <= {199, 200, 201}


def test_bytes_do_not_grow_with_the_samples(system: System) -> None:
    def sent(times: int) -> int:
        """Return the blocks of histograms that ten trees take with that many copies of the data."""
        samples = np.tile(CANCER.data, (times, 1))
        parts = cut(4, samples, np.tile(CANCER.target, times))

        def work(comm: p4reduce.Communicator) -> int:
            before = comm.stats.blocks_announced
            settings = {"max_leaf_nodes": 8, "min_samples_leaf": 20 * times, "max_bins": 16}
            model = HistGradientBoostingClassifier(comm, max_iter=10, **settings)
            model.fit(*parts[comm.rank])
            bins = -(-samples.size * 8 // 1024)
            return comm.stats.blocks_announced - before - bins

        return max(system.run(4, work))

    assert sent(4) <= 1.15 * sent(1)


@pytest.mark.parametrize(
    ("make", "change", "text"),
    [
        (HistGradientBoostingClassifier, "NaN", "rank 1: X[0, 0] is nan"),
        (HistGradientBoostingRegressor, "empty", "rank 1: X has no samples"),
        (HistGradientBoostingClassifier, "features", "rank 0 has features = 30, rank 1 has 29"),
        (HistGradientBoostingClassifier, "one class", "of class 1; at least two"),
        (lambda comm: HistGradientBoostingRegressor(comm, max_bins=1), "", "max_bins=1: 2 to"),
    ],
)
def test_what_cannot_be_fitted(make: Any, change: str, text: str) -> None:
    first, (samples, targets) = cut(2, CANCER.data, CANCER.target)
    samples = samples.copy()
    if change == "NaN":
        samples[0, 0] = np.nan
    elif change == "empty":
        samples, targets = samples[:0], targets[:0]
    elif change == "features":
        samples = samples[:, 1:]
    elif change == "one class":
        first, targets = (first[0], np.ones_like(first[1])), np.ones_like(targets)
    (said,) = refusals(make, [first, (samples, targets)])
    assert text in said
