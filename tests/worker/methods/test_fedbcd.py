# SPDX-License-Identifier: Apache-2.0
"""FedBCD beside gradient descent in one process, and its claim about rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.methods.fedbcd import FedBCDSettings, Party, fedbcd_p, fedbcd_s
from p4reduce.methods.in_process import InProcess, InProcessTraffic, outcomes_of, run
from p4reduce.methods.problems import Logistic
from scipy.special import expit
from worker_system import System

BOTH = pytest.mark.parametrize("method", [fedbcd_p, fedbcd_s])
SETTINGS = FedBCDSettings(rate=0.2, rounds=15, penalty=0.01)


def samples(rng: np.random.Generator, parties: int) -> tuple[list[Any], Any]:
    """Features of each party, and labels."""
    features = rng.standard_normal((80, 2 * parties + 1))
    return np.array_split(features, parties, axis=1), np.sign(rng.standard_normal(80))


def gathered(
    parts: list[Any], labels: Any, method: Any, settings: FedBCDSettings, at: int = 0
) -> Any:
    """The whole model that parties find; the one at rank `at` has the labels."""

    def work(comm: InProcess) -> Any:
        own = labels if comm.rank == at else None
        return method(comm, Party(parts[comm.rank], own), settings).model

    return np.concatenate(run(len(parts), work))


@BOTH
@pytest.mark.parametrize("steps", [1, 3])
def test_the_written_out_method(rng: np.random.Generator, method: Any, steps: int) -> None:
    """Whole vectors in one loop, with the textbook's gradient for labels of 0 and 1."""
    parts, labels = samples(rng, 3)
    settings = replace(SETTINGS, local_steps=steps)
    ends = np.cumsum([part.shape[1] for part in parts])
    blocks = [slice(end - part.shape[1], end) for end, part in zip(ends, parts, strict=True)]
    whole, zero_one, labelled = np.concatenate(parts, axis=1), (labels + 1) / 2, 1
    model = np.zeros(whole.shape[1])
    for _ in range(settings.rounds):
        start, new = model.copy(), model.copy()
        for rank, block in enumerate(blocks):
            base = (start if method is fedbcd_p else new).copy()
            stale = (expit(whole @ base) - zero_one) / 80
            for _ in range(steps):
                if rank == labelled:
                    base[block] = new[block]
                    stale = (expit(whole @ base) - zero_one) / 80
                slope = whole[:, block].T @ stale + 0.01 * new[block]
                new[block] = new[block] - 0.2 * slope
        model = new
    found = gathered(parts, labels, method, settings, at=labelled)
    np.testing.assert_allclose(found, model, atol=1e-12)


@BOTH
def test_squares_and_batches(rng: np.random.Generator, method: Any) -> None:
    parts, _ = samples(rng, 2)
    truth = rng.standard_normal(5)
    labels = np.concatenate(parts, axis=1) @ truth
    settings = FedBCDSettings(rate=0.1, rounds=800, local_steps=2, batch=40, seed=7)

    def work(comm: InProcess) -> Any:
        own = None if comm.rank else labels
        return method(comm, Party(parts[comm.rank], own, squares=True), settings).model

    np.testing.assert_allclose(np.concatenate(run(2, work)), truth, atol=1e-6)


@BOTH
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
def test_over_the_switch(
    system: System, rng: np.random.Generator, method: Any, hidden: bool
) -> None:
    parts, labels = samples(rng, 3)
    settings = replace(SETTINGS, local_steps=2, hidden=hidden)

    def work(comm: p4reduce.Communicator) -> Any:
        return method(comm, Party(parts[comm.rank], None if comm.rank else labels), settings).model

    found = np.concatenate(system.run(3, work))
    expected = gathered(parts, labels, method, replace(settings, hidden=False))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def rounds(features: Any, labels: Any, method: Any, steps: int, most: int) -> int:
    """How many two parties need until the objective is within 0.01 of the least."""
    task = Logistic(features, labels, 1e-3, 1 / len(labels))
    least = task.value(task.proximal(np.zeros(task.size), 0.0))
    parts = np.array_split(features, 2, axis=1)
    settings = FedBCDSettings(0.5 / task.smoothness(), most, local_steps=steps, penalty=1e-3)

    def work(comm: InProcess) -> Any:
        def watch(_number: int, block: Any) -> bool:
            return task.value(np.concatenate(comm.confer(block))) - least <= 0.01

        own = None if comm.rank else labels
        return method(comm, Party(parts[comm.rank], own), settings, watch=watch).steps

    return int(run(2, work)[0])


def real(name: str) -> tuple[Any, Any]:
    datasets = pytest.importorskip("sklearn.datasets", reason="it has the data")
    data = getattr(datasets, f"load_{name}")()
    features = data.data[:, data.data.std(axis=0) > 0]
    labels = data.target if name == "breast_cancer" else data.target % 2
    return (features - features.mean(axis=0)) / features.std(axis=0), 2.0 * labels - 1


@BOTH
@pytest.mark.parametrize("name", ["breast_cancer", "digits"])
def test_rounds_fall_by_the_number_of_local_steps(method: Any, name: str) -> None:
    data = real(name)
    one = rounds(*data, method, 1, 600)
    for steps in (5, 10):
        assert steps * rounds(*data, method, steps, 600) == pytest.approx(one, rel=0.05)


@pytest.mark.long
def test_and_stop_to_where_the_slope_is_too_stale() -> None:
    """In parallel, with 25 steps: the others' slopes are those of 25 steps ago."""
    assert rounds(*real("digits"), fedbcd_p, 25, 400) == 400
    assert rounds(*real("digits"), fedbcd_s, 25, 400) < 40


def test_what_travels(rng: np.random.Generator) -> None:
    """Two sums of as many numbers as samples per round in parallel, twice as many in sequence."""
    parts, labels = samples(rng, 4)
    for method, sums in ((fedbcd_p, 2), (fedbcd_s, 8)):
        elements = []
        for number in (3, 13):
            traffic = InProcessTraffic()

            def work(comm: InProcess) -> Any:
                own = None if comm.rank else labels
                return method(comm, Party(parts[comm.rank], own), replace(SETTINGS, rounds=number))  # noqa: B023

            run(4, work, traffic)
            elements.append(traffic.elements)
        assert elements[1] - elements[0] == 10 * sums * 80


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"features": np.zeros((0, 2))}, "rank 1: features have shape (0, 2)"),
        ({"features": np.full((80, 2), np.nan)}, "rank 1: NaN or infinity is among the features"),
        ({"features": np.ones((79, 2))}, "rank 0 has samples = 80, rank 1 has 79"),
        ({"labels": np.ones(80)}, "ranks [0, 1] have labels; exactly one needs them"),
        ({"labels": np.arange(80)}, "rank 1: labels are not all -1 or 1"),
        ({"squares": True}, "the ranks have different losses"),
        ({"rate": -1.0}, "rank 1: rate=-1: a positive number is needed"),
        ({"rate": 0.3}, "rank 0 has rate = 0.2, rank 1 has 0.3"),
        ({"batch": 99}, "rank 1: batch=99: 0 to 80 samples are needed"),
    ],
)
def test_bad_input_is_an_error_on_all(
    rng: np.random.Generator, change: dict[str, Any], says: str
) -> None:
    parts, labels = samples(rng, 3)

    def work(comm: InProcess) -> Any:
        given: dict[str, Any] = {"features": parts[comm.rank], "labels": None, "squares": False}
        settings = SETTINGS
        if comm.rank == 0:
            given["labels"] = labels
        if comm.rank == 1:
            given.update({name: value for name, value in change.items() if name in given})
            others = {name: value for name, value in change.items() if name not in given}
            settings = replace(SETTINGS, **others)
        party = Party(given["features"], given["labels"], squares=given["squares"])
        return fedbcd_p(comm, party, settings)

    errors = outcomes_of(3, work)
    assert {type(error) for error in errors} == {ValueError}
    assert {str(error) for error in errors} == {str(errors[0])}
    assert says in str(errors[0])


def test_models_that_run_away_are_an_error_on_all(rng: np.random.Generator) -> None:
    parts, _ = samples(rng, 3)
    settings = FedBCDSettings(rate=1e6, rounds=400, local_steps=2)

    def work(comm: InProcess) -> Any:
        labels = None if comm.rank else np.ones(80)
        return fedbcd_p(comm, Party(parts[comm.rank], labels, squares=True), settings)

    errors = outcomes_of(3, work)
    assert {type(error) for error in errors} == {ValueError}
    assert all("the models diverge: a smaller rate than 1e+06" in str(error) for error in errors)


def test_somebody_has_to_have_labels(rng: np.random.Generator) -> None:
    parts, _ = samples(rng, 2)
    errors = outcomes_of(2, lambda comm: fedbcd_s(comm, Party(parts[comm.rank]), SETTINGS))
    assert {str(error) for error in errors} == {
        "fedbcd-s: no rank has labels; exactly one needs them"
    }
