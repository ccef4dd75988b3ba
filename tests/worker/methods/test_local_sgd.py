# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo beside a loop in one process; digits on parts that are alike and sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from method_tasks import refusal, synthetic
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import run
from p4reduce.methods.local_sgd import DILOCO_MOMENTUM, DILOCO_RATE, local_sgd
from p4reduce.methods.network import NetworkPart
from p4reduce.methods.problems import LeastSquares, Logistic, split_evenly
from worker_system import System

sklearn = pytest.importorskip("sklearn", reason="for its data")
from sklearn import datasets  # noqa: E402

RANKS, TEST, STEPS = 8, 360, 640
DILOCO = {"outer_rate": DILOCO_RATE, "outer_momentum": DILOCO_MOMENTUM}


def digits(by_label: bool, seed: int) -> tuple[list[NetworkPart], Any, Any]:
    """Parts of the ranks, images and labels that nobody trains on."""
    data = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    images, labels = data.data[order] / 16, data.target[order]
    rows = np.arange(TEST, len(images))
    if by_label:
        rows = rows[labels[rows].argsort(kind="stable")]
        shares = np.array_split(rows, RANKS)
    else:
        shares = [rows[rank::RANKS] for rank in range(RANKS)]
    parts = [NetworkPart(images[share], labels[share], 32, 10) for share in shares]
    return parts, images[:TEST], labels[:TEST]


def score(by_label: bool, every: int, **outer: float) -> float:
    """The mean of three runs' scores."""
    scores = []
    for seed in range(3):
        parts, images, labels = digits(by_label, seed)

        def work(comm: Any, parts: Any = parts, seed: int = seed) -> Any:
            settings: dict[str, Any] = {"rate": 0.3, "steps": STEPS, "every": every, "batch": 32}
            start = parts[0].start(seed)
            return local_sgd(comm, parts[comm.rank], seed=seed, start=start, **settings, **outer)

        end = run(RANKS, work)[0]
        assert end.sums == STEPS / every + 2  # the meeting and the first model
        scores.append(parts[0].score(end.model, images, labels))
    return float(np.mean(scores))


@pytest.mark.long
def test_parts_that_are_alike_need_a_sixteenth_of_the_sums() -> None:
    each = score(False, 1)
    assert each > 0.955
    assert score(False, 16) > each - 0.01
    assert score(False, 64) > each - 0.015


@pytest.mark.long
def test_parts_sorted_by_label_lose_and_outer_momentum_helps() -> None:
    each, some, few = score(True, 1), score(True, 16), score(True, 64)
    assert each - 0.005 > some > few + 0.05
    assert score(True, 16, **DILOCO) > some + 0.01
    assert score(True, 64, **DILOCO) > few + 0.03


def test_one_step_at_a_time_is_gradient_descent() -> None:
    parts = synthetic(4)
    ends = run(4, lambda c: local_sgd(c, parts[c.rank], rate=0.04, steps=30, every=1))
    same = run(4, lambda c: gd(c, parts[c.rank], rate=0.01, steps=30))
    np.testing.assert_allclose(ends[2].model, same[2].model, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_each_average_is_that_of_the_equations(
    rng: np.random.Generator, system: System, momentum: float
) -> None:
    h, y = rng.standard_normal((40, 6)), rng.standard_normal(40)
    shares = split_evenly(h, y, 4)
    draws = [np.random.default_rng([5, rank]) for rank in range(4)]
    shared = np.ones(6)
    wanted = []
    for steps in (3, 3, 1):
        ends = []
        for (part, targets), draw in zip(shares, draws, strict=True):
            model = shared.copy()
            for _ in range(steps):
                rows = draw.integers(10, size=4)
                inner = part[rows].T @ (part[rows] @ model - targets[rows])
                model = model - 0.01 * 10 / 4 * inner
            ends.append(model)
        # Nesterov's other form: a step from the last point, then beyond it.
        point = shared + 0.7 * (np.mean(ends, axis=0) - shared)
        if momentum:
            wanted.append(np.mean(ends, axis=0) - shared)
            speeds = [w * momentum ** (len(wanted) - k) for k, w in enumerate(wanted)]
            point = point + 0.7 * np.sum(speeds, axis=0)
        shared = point
    seen: list[int] = []

    def work(comm: Any) -> Any:
        return local_sgd(
            comm,
            LeastSquares(*shares[comm.rank]),
            rate=0.01,
            steps=7,
            every=3,
            batch=4,
            seed=5,
            start=np.ones(6),
            outer_rate=0.7,
            outer_momentum=momentum,
            watch=lambda step, _model: seen.append(step) if comm.rank == 0 else None,
        ).model

    for model in run(4, work):
        np.testing.assert_allclose(model, shared, atol=1e-12)
    for model in system.run(4, work):
        np.testing.assert_allclose(model, shared, atol=1e-6)
    assert seen == [3, 6, 7, 3, 6, 7]


def test_stochastic_gradients_have_the_gradient_as_their_mean(rng: np.random.Generator) -> None:
    h, y = rng.standard_normal((12, 3)), np.sign(rng.standard_normal(12))
    at = rng.standard_normal(3)
    for part in (LeastSquares(h, y, 0.2), Logistic(h, y, 0.2, 1 / 30)):
        singles = [part.stochastic_gradient(at, np.array([row])) for row in range(12)]
        np.testing.assert_allclose(np.mean(singles, axis=0), part.gradient(at), atol=1e-12)


def test_the_gradient_of_a_network(rng: np.random.Generator) -> None:
    part = NetworkPart(rng.standard_normal((9, 4)), rng.integers(0, 3, 9), 5, 3)
    model = part.start(0)
    gradient = part.gradient(model)
    assert gradient.shape == model.shape == (4 * 5 + 5 + 5 * 3 + 3,)
    for k in rng.choice(part.size, 12, replace=False):
        step = 1e-6 * np.eye(part.size)[k]
        slope = (part.value(model + step) - part.value(model - step)) / 2e-6
        assert gradient[k] == pytest.approx(slope, abs=1e-7)


def test_bad_input_is_refused_on_all_ranks() -> None:
    parts = synthetic(3)
    settings: dict[str, Any] = {"rate": 0.01, "steps": 4, "every": 2}
    said = refusal(local_sgd, parts, **settings | {"every": 0})
    assert "every=0: at least 1 is needed" in said
    assert "outer_momentum=1" in refusal(local_sgd, parts, outer_momentum=1, **settings)
    said = refusal(local_sgd, parts, start=np.ones(3), **settings)
    assert "start: 50 finite numbers are needed" in said
    said = refusal(local_sgd, parts, **settings | {"rate": 1e200})
    assert said.startswith("local-sgd: a rank's model diverges before step")
    network: list[Any] = [NetworkPart(np.ones((2, 3)), [0, 1], 2, 2) for _ in range(3)]
    network[1] = NetworkPart(np.ones((2, 3)), [0, 2], 2, 2)
    said = refusal(local_sgd, network, **settings)
    assert said == "local-sgd: rank 1: y has classes outside of 0 to 1"
    network[1] = NetworkPart(np.ones((0, 3)), [], 2, 2)
    assert "rank 1: X has no samples" in refusal(local_sgd, network, **settings)
    network[1] = NetworkPart(np.ones((2, 4)), [0, 1], 2, 2)
    assert "rank 1 has 16; all ranks need the same" in refusal(local_sgd, network, **settings)
