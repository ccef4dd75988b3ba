# SPDX-License-Identifier: Apache-2.0
"""Every method of the scorecard refuses bad input on all ranks, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from p4reduce.methods.admm import admm
from p4reduce.methods.cat import cat
from p4reduce.methods.dslsr1 import dslsr1
from p4reduce.methods.fedbcd import FedBCDSettings, Party, fedbcd_p, fedbcd_s
from p4reduce.methods.gadmm import dgadmm, gadmm
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import outcomes_of
from p4reduce.methods.lag import lag_ps, lag_wk
from p4reduce.methods.local_sgd import local_sgd
from p4reduce.methods.neighbours import Groups, OneJob
from p4reduce.methods.problems import LeastSquares, Logistic
from worker_system import System

pytest.importorskip("sklearn", reason="estimators need it")
from p4reduce.methods.adanet import AdaNetClassifier
from p4reduce.methods.kmeans import KMeans
from p4reduce.methods.linear import LinearRegression
from p4reduce.methods.logistic import LogisticRegression
from p4reduce.methods.naive_bayes import GaussianNB, MultinomialNB
from p4reduce.methods.pca import PCA, SubspaceDetector

RANKS = 4
WRONG = 2  # the rank that has it

Method = Callable[..., Any]
STEPS: dict[str, tuple[Method, dict[str, Any]]] = {
    "gd": (gd, {"rate": 1e-3, "steps": 3}),
    "cat": (cat, {"rate": 1e-3, "steps": 3}),
    "lag-wk": (lag_wk, {"rate": 1e-3, "steps": 3}),
    "lag-ps": (lag_ps, {"rate": 1e-3, "steps": 3}),
    "admm": (admm, {"rho": 1.0, "steps": 3}),
    "gadmm": (gadmm, {"rho": 1.0, "steps": 3}),
    "dgadmm": (dgadmm, {"rho": 1.0, "steps": 3, "period": 2}),
    "dslsr1": (dslsr1, {"steps": 3, "memory": 2}),
    "local-sgd": (local_sgd, {"rate": 1e-3, "steps": 3, "every": 2}),
}
ONES, LABELS = np.ones((6, 3)), np.ones(6)
HOLED = np.where(np.eye(6, 3) > 0, np.nan, 1.0)
BAD_PARTS = {
    "no samples": (np.zeros((0, 3)), np.zeros(0)),
    "no features": (np.zeros((6, 0)), LABELS),
    "NaN": (HOLED, LABELS),
    "infinite target": (ONES, np.full(6, np.inf)),
    "one dimension": (np.ones(6), LABELS),
    "more features": (np.ones((6, 4)), LABELS),
    "fewer targets": (ONES, np.ones(5)),
    "no dimension": (np.float64(1), LABELS),
    "words": (np.full((6, 3), "one"), LABELS),
    "complex": (1j * ONES, LABELS),
    "too large": (1e200 * ONES, LABELS),
}


def refused(work: Callable[[Any], Any]) -> str:
    """What all ranks say."""
    outcomes = outcomes_of(RANKS, work)
    assert all(isinstance(outcome, ValueError) for outcome in outcomes), outcomes
    (said,) = {str(outcome) for outcome in outcomes}
    return said


@pytest.mark.parametrize("kind", [LeastSquares, Logistic])
@pytest.mark.parametrize("bad", BAD_PARTS)
@pytest.mark.parametrize("method", STEPS)
def test_one_bad_part(method: str, bad: str, kind: Any) -> None:
    function, settings = STEPS[method]

    def work(comm: Any) -> Any:
        part = kind(*(BAD_PARTS[bad] if comm.rank == WRONG else (ONES, LABELS)))
        return function(comm, part, **settings)

    said = refused(work)
    assert said.startswith(f"{method}: ")
    assert f"rank {WRONG}" in said


def test_over_the_switch_nobody_waits(system: System) -> None:
    """One call of each method after the other: a refusal leaves the ranks together."""

    def said(comm: Any, method: str, part: Any) -> str:
        function, settings = STEPS[method]
        with pytest.raises(ValueError, match=f"^{method}: .*rank {WRONG}") as caught:
            function(comm, part, **settings)
        return str(caught.value)

    def work(comm: Any) -> list[str]:
        bad = BAD_PARTS.values() if comm.rank == WRONG else [(ONES, LABELS)] * len(BAD_PARTS)
        parts = [LeastSquares(*each) for each in bad]
        return [said(comm, method, part) for method in STEPS for part in parts]

    first, *others = system.run(RANKS, work)
    assert all(other == first for other in others)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("method", STEPS)
def test_a_number_that_has_to_be_positive(method: str, value: float) -> None:
    function, settings = STEPS[method]
    name = next((name for name in ("rho", "rate") if name in settings), "radius")

    def work(comm: Any) -> Any:
        mine = {name: value} if comm.rank == WRONG else {}
        return function(comm, LeastSquares(ONES, LABELS), **settings | mine)

    said = refused(work)
    assert f"rank {WRONG}: {name}={value:g}" in said


@pytest.mark.parametrize(
    ("steps", "wanted"), [(0, "at least 1 is needed"), (3.0, "a whole number is needed")]
)
@pytest.mark.parametrize("method", STEPS)
def test_steps_that_cannot_be_counted(method: str, steps: float, wanted: str) -> None:
    function, settings = STEPS[method]
    part = LeastSquares(ONES, LABELS)
    said = refused(lambda comm: function(comm, part, **settings | {"steps": steps}))
    assert f"steps={steps}: {wanted}" in said


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        *((method, "steps", 4) for method in STEPS),
        ("gd", "momentum", 0.5),
        ("cat", "compression", "cat:own"),
        ("gadmm", "by", Groups),
        ("dgadmm", "seed", 5),
        ("dslsr1", "start", np.ones(3)),
        ("dslsr1", "naive", True),
        ("lag-wk", "precision", "int8"),
        ("local-sgd", "precision", "int16"),
        ("local-sgd", "start", np.ones(3)),
    ],
)
def test_settings_that_differ(method: str, name: str, value: Any) -> None:
    """Ranks would call other collectives, or call them more often."""
    function, settings = STEPS[method]

    def work(comm: Any) -> Any:
        mine = {name: value} if comm.rank == WRONG else {}
        return function(comm, LeastSquares(ONES, LABELS), **settings | mine)

    said = refused(work)
    assert f"rank {WRONG} has" in said
    assert name in said


@pytest.mark.parametrize("regularisation", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("kind", [LeastSquares, Logistic])
def test_a_bad_penalty_of_one_part(kind: Any, regularisation: float) -> None:
    def work(comm: Any) -> Any:
        mine = regularisation if comm.rank == WRONG else 0.1
        return gd(comm, kind(ONES, LABELS, mine), rate=1e-3, steps=3)

    assert f"rank {WRONG}: regularisation={regularisation:g}" in refused(work)


AWAY = [method for method, (_, settings) in STEPS.items() if "rate" in settings]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rate", [1e6, 1e200])
@pytest.mark.parametrize("method", AWAY)
def test_a_model_that_runs_away(method: str, rate: float) -> None:
    function, settings = STEPS[method]
    part = LeastSquares(np.eye(6, 3) + 1, LABELS)
    said = refused(lambda comm: function(comm, part, **settings | {"rate": rate, "steps": 200}))
    assert said.startswith(f"{method}: ")
    assert "diverges" in said


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_over_the_switch_all_notice_what_runs_away(system: System) -> None:
    part = LeastSquares(np.eye(6, 3) + 1, LABELS)

    def work(comm: Any) -> list[str]:
        said = []
        for method in AWAY:
            function, settings = STEPS[method]
            with pytest.raises(ValueError, match="diverges") as caught:
                function(comm, part, **settings | {"rate": 1e200, "steps": 60})
            said.append(str(caught.value))
        return said

    first, *others = system.run(RANKS, work)
    assert all(other == first for other in others)


class Failing(LeastSquares):
    """Its local solves fail after some."""

    left = 6

    def proximal(self, linear: Any, quadratic: float) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("there is no minimum")
        return super().proximal(linear, quadratic)


class Concave(LeastSquares):
    """Its local solves go the wrong way, ever farther."""

    def proximal(self, linear: Any, quadratic: float) -> Any:
        return 5 * super().proximal(linear, quadratic) + linear


@pytest.mark.parametrize("by", [OneJob, Groups])
@pytest.mark.parametrize("kind", [Failing, Concave])
@pytest.mark.parametrize("method", ["admm", "gadmm", "dgadmm"])
def test_a_local_solve_that_fails_later(method: str, kind: Any, by: Any) -> None:
    function, settings = STEPS[method]
    more = {"steps": 1530} | ({} if method == "admm" else {"by": by})

    def work(comm: Any) -> Any:
        part = kind(ONES + np.eye(6, 3), LABELS)
        return function(comm, part, **settings | more)

    assert "another rho than 1 is needed" in refused(work)


@pytest.mark.parametrize("method", ["admm", "gadmm", "dgadmm"])
def test_a_singular_local_solve(method: str) -> None:
    """Features of 1e12 leave nothing of ρ = 1 in float64."""
    function, settings = STEPS[method]

    def work(comm: Any) -> Any:
        features = 1e12 * ONES if comm.rank == WRONG else ONES
        return function(comm, LeastSquares(features, LABELS), **settings)

    said = refused(work)
    assert f"rank {WRONG}: the matrix of the local solve is singular" in said


@pytest.mark.parametrize(
    "bad", [(np.zeros((0, 3)), None), (HOLED, None), (np.ones((5, 3)), None), (ONES, LABELS)]
)
@pytest.mark.parametrize("method", [fedbcd_p, fedbcd_s])
def test_a_bad_party(method: Method, bad: tuple[Any, Any]) -> None:
    """The last one's samples are fine, but two parties have labels."""

    def work(comm: Any) -> Any:
        data = bad if comm.rank == WRONG else (ONES, LABELS if comm.rank == 0 else None)
        return method(comm, Party(*data), FedBCDSettings(rate=0.1, rounds=3))

    said = refused(work)
    assert str(WRONG) in said


@pytest.mark.parametrize("method", [fedbcd_p, fedbcd_s])
def test_a_bad_rate_of_a_party(method: Method) -> None:
    def work(comm: Any) -> Any:
        rate = -1.0 if comm.rank == WRONG else 0.1
        party = Party(ONES, LABELS if comm.rank == 0 else None)
        return method(comm, party, FedBCDSettings(rate=rate, rounds=3))

    assert f"rank {WRONG}: rate=-1: a positive number" in refused(work)


COUNTS, CLASSES = np.arange(18.0).reshape(6, 3) % 5, np.arange(6) % 3
HUGE = 1e300 * (1 + COUNTS)
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "MultinomialNB": MultinomialNB,
    "GaussianNB": GaussianNB,
    "KMeans": lambda comm, **settings: KMeans(comm, 3, **settings),
    "PCA": PCA,
    "SubspaceDetector": lambda comm, **settings: SubspaceDetector(comm, 1, **settings),
    "LinearRegression": LinearRegression,
    "LogisticRegression": LogisticRegression,
    "AdaNetClassifier": AdaNetClassifier,
}


@pytest.mark.parametrize(
    ("estimator", "name", "value"),
    [
        ("MultinomialNB", "alpha", 0.0),
        ("GaussianNB", "var_smoothing", -1.0),
        ("KMeans", "init", np.full((3, 3), np.nan)),
        ("KMeans", "init", [[1.0], [2.0, 3.0]]),
        ("KMeans", "random_state", None),
        ("AdaNetClassifier", "random_state", np.random.RandomState(0)),
        ("PCA", "n_components", 4),
        ("SubspaceDetector", "false_alarms", 1.0),
        ("LinearRegression", "alpha", np.nan),
        ("LogisticRegression", "C", 0.0),
        ("AdaNetClassifier", "epochs", 0),
        # These are possible, but not on one rank only.
        ("MultinomialNB", "alpha", 2.0),
        ("KMeans", "init", np.ones((3, 3))),
        ("KMeans", "max_iter", 5),
        ("PCA", "n_components", 2),
        ("LinearRegression", "fit_intercept", False),
        ("LogisticRegression", "max_iter", 5),
        ("AdaNetClassifier", "max_iter", 2),
    ],
)
def test_a_setting_of_an_estimator(estimator: str, name: str, value: Any) -> None:
    def work(comm: Any) -> Any:
        mine = {name: value} if comm.rank == WRONG else {}
        return ESTIMATORS[estimator](comm, **mine).fit(COUNTS, CLASSES)

    said = refused(work)
    assert said.startswith(f"{estimator}: ")
    assert f"rank {WRONG}" in said
    assert name in said


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("estimator", sorted(ESTIMATORS.keys() - {"LinearRegression"}))
def test_numbers_whose_squares_are_infinite(estimator: str) -> None:
    """LinearRegression has a unit for each feature, in which no square is."""

    def work(comm: Any) -> Any:
        samples = HUGE if comm.rank == WRONG else COUNTS
        return ESTIMATORS[estimator](comm).fit(samples, CLASSES)

    assert "rank" in refused(work)
