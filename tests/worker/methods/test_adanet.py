# SPDX-License-Identifier: Apache-2.0
"""AdaNet over ranks: the objective, and the ensemble beside its parts and one network."""

from __future__ import annotations

from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.methods.subnetworks import SubNetwork, cross_entropy, softmax
from parts import refusals
from worker_system import System

sklearn = pytest.importorskip("sklearn", reason="estimators need it")
from p4reduce.methods.adanet import AdaNetClassifier  # noqa: E402
from sklearn import datasets, model_selection  # noqa: E402

DIGITS = datasets.load_digits()
EPOCHS = 15


@pytest.mark.long
def test_an_ensemble_of_four_ranks(system: System) -> None:
    train, test, classes, wanted = model_selection.train_test_split(
        DIGITS.data, DIGITS.target, random_state=0
    )

    models = system.run(
        4, lambda comm: AdaNetClassifier(comm, max_iter=4, epochs=EPOCHS).fit(train, classes)
    )
    # The ranks have left: what follows is computed on one of them alone.
    model = models[0]
    logits, score = model.decision_function(test), model.score(test, wanted)
    each = model.subnetwork_scores(test, wanted)
    assert all((other.decision_function(test) == logits).all() for other in models[1:])
    assert 2 <= len(model.weights_) <= 4
    # The objective falls with each subnetwork: F(0) is that of a guess.
    assert model.objectives_[0] == pytest.approx(np.log(10))
    assert (np.diff(model.objectives_) < 0).all()
    # The objective that the ranks have reached by their own networks, from the gathered ones.
    assert len(model.networks_) == len(model.weights_)
    prices = [1e-4 * np.sqrt(len(widths)) + 1e-4 for widths in model.widths_]
    objective = cross_entropy(model.decision_function(train), classes)
    objective += float((np.array(prices) * np.abs(model.weights_)).sum())
    assert objective == pytest.approx(model.objectives_[-1])
    # No worse than its best subnetwork, and than one network of as many parameters less half a
    # point.
    assert score >= each.max()
    assert score >= _one_network(model.parameters_, train, classes, test, wanted) - 0.005


def _one_network(parameters: int, train: Any, classes: Any, test: Any, wanted: Any) -> float:
    width = 1
    rng = np.random.default_rng(0)
    while SubNetwork((64, width, 10), rng).parameters < parameters:
        width += 1
    network = SubNetwork((64, width, 10), rng)
    mean, spread = train.mean(axis=0), train.std(axis=0) + 1e-12
    network.train((train - mean) / spread, classes, EPOCHS, 32, rng)
    return float((network.logits((test - mean) / spread).argmax(axis=1) == wanted).mean())


def test_one_rank_predicts_while_the_others_do_something_else(system: System) -> None:
    samples, classes = DIGITS.data[:100], DIGITS.target[:100]

    def work(comm: p4reduce.Communicator) -> Any:
        model = AdaNetClassifier(comm, max_iter=2, width=4, epochs=2).fit(samples, classes)
        if comm.rank != 1:
            return comm.allreduce(np.ones(1))
        predicted = model.predict(samples), model.predict_proba(samples)
        with pytest.raises(ValueError, match=r"X has 63 features, but .* is expecting 64"):
            model.predict(samples[:, 1:])
        comm.allreduce(np.ones(1))  # the first call of this rank since `fit`
        return predicted

    _, (predicted, shares) = system.run(2, work)
    assert (predicted == shares.argmax(axis=1)).all()


def test_gradients_of_a_network(rng: np.random.Generator) -> None:
    network = SubNetwork((5, 4, 3, 2), rng)
    samples, classes = rng.standard_normal((7, 5)), rng.integers(0, 2, 7)
    gradients = network.gradients(samples, classes)
    for variable, gradient in zip(network.variables, gradients, strict=True):
        at = tuple(rng.integers(0, variable.shape))
        ends = []
        for step in (1e-6, -1e-6):
            variable[at] += step
            ends.append(cross_entropy(network.logits(samples), classes))
            variable[at] -= step
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)
    assert softmax(network.logits(samples)).sum(axis=1) == pytest.approx(1)


def test_other_samples_are_refused() -> None:
    samples, classes = DIGITS.data[:50], DIGITS.target[:50]
    (said,) = refusals(AdaNetClassifier, [(samples, classes), (samples + 1, classes)])
    assert "rank 0 has checksum of X" in said
    parts = [(samples, classes), (samples * np.nan, classes)]
    (said,) = refusals(AdaNetClassifier, parts)
    assert "rank 1: X[0, 0] is nan" in said
    (said,) = refusals(lambda comm: AdaNetClassifier(comm, epochs=0), [parts[0]])
    assert "epochs=0: at least 1" in said
    (said,) = refusals(AdaNetClassifier, [(samples, classes * 0)])
    assert "of one class, 0; at least two" in said
