# SPDX-License-Identifier: Apache-2.0
"""LAG beside gradient descent: what is uploaded, what is added, and where it comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import p4reduce
import pytest
from method_tasks import Run, gd_steps, hessian, refusal, synthetic
from p4reduce.methods.gd import gd
from p4reduce.methods.in_process import run
from p4reduce.methods.lag import lag_ps, lag_wk
from p4reduce.methods.problems import LeastSquares, Logistic, split_evenly
from scipy.optimize import minimize
from worker_system import System

Method = Callable[..., Any]

STEEP = 60.0


def rate_of(parts: list[LeastSquares]) -> float:
    return 1 / float(np.linalg.eigvalsh(hessian(parts))[-1])


def to_gap(method: Method, parts: list[LeastSquares], gap: float, **settings: Any) -> Run:
    """Run to a gap; all ranks have the same model, so each can tell by itself."""
    whole = hessian(parts)
    best = np.linalg.solve(whole, sum(part.features.T @ part.targets for part in parts))

    def off(model: Any) -> float:
        return float((model - best) @ whole @ (model - best)) / 2

    def watch(_step: int, model: Any) -> bool:
        return off(model) <= gap

    rate = rate_of(parts)
    ends = run(len(parts), lambda c: method(c, parts[c.rank], rate=rate, watch=watch, **settings))
    return Run(ends[0].steps, sum(end.uploads for end in ends), off(ends[0].model))


def plain(
    parts: list[LeastSquares], xi: float, depth: int = 10, share: float = 1.0, *, server: bool
) -> Run:
    """The paper's algorithms without rounding, to a gap of 1e-4, with steps of share/L.

    Without `server` it is LAG-WK, else LAG-PS. A run that does not get there has a gap above it.
    """
    ranks, size = len(parts), parts[0].size
    grams = np.stack([part.features.T @ part.features for part in parts])
    moments = np.stack([part.features.T @ part.targets for part in parts])
    whole = grams.sum(axis=0)
    best = np.linalg.solve(whole, moments.sum(axis=0))
    rate = share / np.linalg.eigvalsh(whole)[-1]
    squared = np.array([np.linalg.eigvalsh(gram)[-1] ** 2 for gram in grams])
    model, last, kept = np.zeros(size), np.zeros((ranks, size)), -moments
    lengths: list[float] = []
    outcome = Run(uploads=ranks)
    for outcome.steps in range(1, 2 * gd_steps(parts, 1e-4)):
        if outcome.steps > 1:
            allowed = xi / (rate * ranks) ** 2 * sum(lengths[-depth:])
            fresh = grams @ model - moments
            moved = squared * ((last - model) ** 2).sum(axis=1)
            changed = (moved if server else ((fresh - kept) ** 2).sum(axis=1)) > allowed
            kept[changed], last[changed] = fresh[changed], model
            outcome.uploads += int(changed.sum())
        move = -rate * kept.sum(axis=0)
        model = model + move
        lengths.append(float(move @ move))
        outcome.gap = float((model - best) @ whole @ (model - best)) / 2
        if outcome.gap <= 1e-4 or not outcome.gap < 1e14:
            break
    return outcome


@pytest.mark.parametrize(
    ("method", "xi", "server"), [(lag_wk, 0.1, False), (lag_ps, 1.0, True), (lag_ps, 21.6, True)]
)
def test_it_goes_as_the_papers_algorithms_do(method: Method, xi: float, server: bool) -> None:
    """Uploads of 12 ranks, which rounding to lanes hardly changes."""
    parts = synthetic(12)
    exact, lanes = plain(parts, xi, server=server), to_gap(method, parts, 1e-4, steps=600, xi=xi)
    assert lanes.steps == pytest.approx(exact.steps, rel=0.05)
    assert lanes.uploads == pytest.approx(exact.uploads, rel=0.1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_server_rule_reaches_no_twentieth_with_16_ranks(seed: int) -> None:
    """Whatever ξ, D and step: what docs/methods.md says of the method's limit."""
    parts = synthetic(16, seed)
    steps = gd_steps(parts, 1e-4)
    best = (0.0, "")
    for depth in (1, 2, 5, 10, 20, 50):
        for delay in (0.5, 1.0, 1.5, 2.0, 3.0):  # ξD/M²
            for share in (1.0, 0.8, 0.6):
                run = plain(parts, delay * 16**2 / depth, depth, share, server=True)
                if run.gap <= 1e-4 and run.steps <= 1.1 * steps:
                    found = f"D = {depth}, ξD = {delay}·M², step {share}/L, {run}"
                    best = max(best, (16 * steps / run.uploads, found))
    print(f"{steps} steps of gradient descent; 1/{best[0]:.1f} of its uploads: {best[1]}")
    assert 16 < best[0] < 20


@pytest.mark.long
def test_uploads_on_the_authors_data() -> None:
    parts = synthetic(16)
    plain = gd_steps(parts, 1e-4)
    workers = to_gap(lag_wk, parts, 1e-4, steps=2 * plain)
    narrow = to_gap(lag_wk, parts, 1e-4, steps=2 * plain, precision="int8")
    server = to_gap(lag_ps, parts, 1e-4, steps=2 * plain, xi=1.0)
    assert max(workers.steps, narrow.steps, server.steps) <= 1.1 * plain
    assert workers.uploads <= 16 * plain / 20
    assert narrow.uploads <= 16 * plain / 15
    assert server.uploads <= 16 * plain / 3


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_the_server_rule_with_its_best_xi(seed: int) -> None:
    """With the authors' ξ = 1 it has a third; with 0.15 times the ranks' square a fifteenth."""
    parts = synthetic(16, seed)
    plain = gd_steps(parts, 1e-4)
    server = to_gap(lag_ps, parts, 1e-4, steps=2 * plain, xi=0.15 * 16**2)
    assert server.steps <= 0.7 * plain
    assert server.uploads <= 16 * plain / 15


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_server_rule_with_20_ranks(seed: int) -> None:
    """It reaches a twentieth, if ξ is 0.15 times the ranks' square."""
    parts = synthetic(20, seed)
    plain = gd_steps(parts, 1e-4)
    server = to_gap(lag_ps, parts, 1e-4, steps=2 * plain, xi=0.15 * 20**2)
    print(f"{plain} steps of gradient descent; {server}")
    assert server.steps <= 1.1 * plain
    assert server.uploads <= 20 * plain / 20


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["int32", "int8"])
def test_uploads_with_20_ranks(precision: str) -> None:
    parts = synthetic(20)
    plain = gd_steps(parts, 1e-4)
    workers = to_gap(lag_wk, parts, 1e-4, steps=2 * plain, precision=precision)
    print(f"{plain} steps of gradient descent; {workers}")
    assert workers.steps <= 1.1 * plain
    assert workers.uploads <= 20 * plain / 20


@pytest.mark.long
@pytest.mark.parametrize("precision", ["int32", "int8"])
def test_uploads_on_diabetes(precision: str) -> None:
    data = pytest.importorskip("sklearn.datasets", reason="for its data").load_diabetes()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    targets = data.target - data.target.mean()
    parts = [LeastSquares(*part) for part in split_evenly(features, targets, 16)]
    plain = gd_steps(parts, 1e-4)
    workers = to_gap(lag_wk, parts, 1e-4, steps=2 * plain, precision=precision)
    print(f"{plain} steps of gradient descent; {workers}")
    assert workers.steps <= 1.1 * plain
    assert workers.uploads <= 16 * plain / 20
    server = to_gap(lag_ps, parts, 1e-4, steps=2 * plain)
    assert server.steps <= 1.1 * plain
    print(server)


def test_the_server_rule_where_one_rank_is_steep(rng: np.random.Generator) -> None:
    """The default ξ = 0.1 reaches a twentieth where one rank has nearly all of the curvature."""
    direction, targets = rng.standard_normal(20), rng.standard_normal(20)
    direction /= np.linalg.norm(direction)
    steep = np.eye(20) + STEEP * np.outer(direction, direction)
    parts = [LeastSquares(steep if rank == 7 else np.eye(20), targets) for rank in range(24)]
    plain = gd_steps(parts, 1e-4)
    server = to_gap(lag_ps, parts, 1e-4, steps=2 * plain)
    assert server.steps <= 1.1 * plain
    assert server.uploads <= 24 * plain / 20


@pytest.mark.parametrize("precision", ["int32", "int16", "int8"])
@pytest.mark.parametrize("method", [lag_wk, lag_ps])
def test_a_logistic_task_ends_where_scipy_does(
    rng: np.random.Generator, method: Method, precision: str
) -> None:
    h, y = rng.standard_normal((80, 6)), np.sign(rng.standard_normal(80))
    parts = [Logistic(*part, 0.1 / 5, 1 / 80) for part in split_evenly(h, y, 5)]

    def value(model: Any) -> float:
        return sum(part.value(model) for part in parts)

    expected = minimize(value, np.zeros(6), tol=1e-12).x
    rate = 1 / (0.25 * np.linalg.norm(h, 2) ** 2 / 80 + 0.1)
    ends = run(
        5, lambda comm: method(comm, parts[comm.rank], rate=rate, steps=250, precision=precision)
    )
    for end in ends:
        np.testing.assert_array_equal(end.model, ends[0].model)
        np.testing.assert_allclose(end.model, expected, atol=1e-5)


def test_without_patience_it_is_gradient_descent() -> None:
    parts = synthetic(5)
    settings = {"rate": rate_of(parts), "steps": 40}
    lazy = run(5, lambda comm: lag_wk(comm, parts[comm.rank], xi=1e-9, **settings))
    eager = run(5, lambda comm: gd(comm, parts[comm.rank], **settings))
    np.testing.assert_allclose(lazy[0].model, eager[0].model, atol=1e-4)


@pytest.mark.parametrize("precision", ["int32", "int16", "int8"])
def test_uploads_that_cancel_do_not_end_it(precision: str) -> None:
    """Rounded, the first uploads sum to 0. The model stays, and nothing is allowed from then on."""
    parts = [LeastSquares(np.ones((1, 1)), np.array([end])) for end in (1.0, 2.0**-30 - 1.0)]
    settings = {"rate": 0.5, "steps": 200, "precision": precision}
    result = run(2, lambda comm: lag_wk(comm, parts[comm.rank], **settings))[0]
    assert result.model == pytest.approx(2.0**-31, rel=1e-6)


@pytest.mark.parametrize("precision", ["int32", "int8"])
@pytest.mark.parametrize("method", [lag_wk, lag_ps])
def test_over_the_switch_it_is_the_same_bits(
    system: System, method: Method, precision: str
) -> None:
    parts = synthetic(6)
    settings = {"rate": rate_of(parts), "steps": 60, "precision": precision}

    def work(comm: Any) -> Any:
        before = comm.stats.blocks_sent if isinstance(comm, p4reduce.Communicator) else 0
        end = method(comm, parts[comm.rank], **settings)
        sent = comm.stats.blocks_sent if isinstance(comm, p4reduce.Communicator) else 0
        return end, sent - before

    over_switch = system.run(6, work)
    alone = run(6, work)
    for (end, blocks), (expected, _) in zip(over_switch, alone, strict=True):
        np.testing.assert_array_equal(end.model, expected.model)
        assert blocks == end.uploads == expected.uploads
    sent = sum(blocks for _, blocks in over_switch)
    assert sent < 6 * 60 / 2  # silent ranks send no block


def test_bad_input_is_refused_on_all_ranks() -> None:
    parts = synthetic(4)
    assert "xi=0: a positive number" in refusal(lag_wk, parts, rate=1e-3, steps=3, xi=0)
    said = refusal(lag_ps, parts, rate=1e-3, steps=3, precision="int4")
    assert said.startswith("lag-ps: rank 0: precision='int4': one of int32, int16, int8 is needed")
    said = refusal(lag_wk, parts, rate=1.0, steps=50)
    assert "the model diverges at step" in said
    parts[1] = LeastSquares(np.zeros((0, 50)), np.zeros(0))
    assert refusal(lag_wk, parts, rate=1.0, steps=3) == "lag-wk: rank 1: there are no samples"
    parts[1] = LeastSquares(np.ones((3, 2)), np.zeros(3))
    assert "rank 1 has 2" in refusal(lag_ps, parts, rate=1.0, steps=3)
    many = [LeastSquares(np.ones((1, 1)), np.ones(1)) for _ in range(64)]
    assert "at most 63" in refusal(lag_wk, many, rate=0.01, steps=3, precision="int8")
