# SPDX-License-Identifier: Apache-2.0
"""GADMM and D-GADMM beside the paper's form with a dual per link, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from method_tasks import gd_steps, optimum, refusal, synthetic, to_gap
from p4reduce.methods.gadmm import By, dgadmm, gadmm
from p4reduce.methods.in_process import InProcessTraffic, run
from p4reduce.methods.neighbours import HEADS, TAILS, Grid, Groups, OneJob
from p4reduce.methods.problems import LeastSquares, Logistic, split_evenly
from scipy.optimize import minimize
from worker_system import System


def by_links(
    parts: Sequence[Any], rho: float, steps: int, period: int = 0, seed: int = 0
) -> Iterator[Any]:
    """The paper's form: a dual for each link between two places of the chain.

    With a period other than 0 the chain is drawn again and the duals stay with their links, so
    with places: the control.
    """
    n, size = len(parts), parts[0].size
    thetas, links = np.zeros((n, size)), np.zeros((n + 1, size))  # link k is left of place k
    random, chain = np.random.default_rng(seed), list(range(n))
    for step in range(steps):
        if period and step and step % period == 0:
            chain = random.permutation(n).tolist()
        for place in [*range(0, n, 2), *range(1, n, 2)]:
            part = parts[chain[place]]
            left = part.features.T @ part.features
            right = part.features.T @ part.targets + links[place] - links[place + 1]
            for other in (place - 1, place + 1):
                if 0 <= other < n:
                    left = left + rho * np.eye(size)
                    right = right + rho * thetas[chain[other]]
            thetas[chain[place]] = np.linalg.solve(left, right)
        for place in range(n - 1):
            links[place + 1] += rho * (thetas[chain[place]] - thetas[chain[place + 1]])
        yield thetas.copy()


def gaps(parts: Sequence[Any], iterates: Iterator[Any]) -> list[float]:
    best = optimum(parts)
    return [
        abs(sum(part.value(theta) for part, theta in zip(parts, thetas, strict=True)) - best)
        for thetas in iterates
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_24_ranks_on_five_draws_of_the_authors_data(seed: int) -> None:
    """To the first iteration within the gap, as the authors count."""
    parts = synthetic(24, seed)
    steps = int(np.argmax(np.array(gaps(parts, by_links(parts, 5, 800))) <= 1e-4)) + 1
    assert 1 < steps <= 800
    assert 46 * steps <= 24 * gd_steps(parts, 1e-4) / 50  # two uploads per rank, one at the ends


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 3])
def test_24_ranks_as_the_paper_has_them(seed: int) -> None:
    parts, best = synthetic(24, seed), optimum(synthetic(24, seed))
    fixed = to_gap(gadmm, parts, best, 1e-4, rho=5, steps=800)
    assert fixed.gap <= 1e-4
    assert fixed.uploads == 24 * (fixed.steps + 1)  # the meeting is one
    drawn = to_gap(dgadmm, parts, best, 1e-4, rho=5, steps=800, period=15, seed=seed)
    assert drawn.gap <= 1e-4
    assert drawn.steps <= fixed.steps / 2
    assert fixed.uploads <= 24 * gd_steps(parts, 1e-4) / 50


@pytest.mark.long
def test_duals_tied_to_places_do_not_converge() -> None:
    parts = synthetic(24)
    assert min(gaps(parts, by_links(parts, 5, 720))) <= 1e-4  # on a chain that stays
    assert min(gaps(parts, by_links(parts, 5, 720, period=15))[100:]) > 10


@pytest.mark.parametrize("by", [OneJob, Groups])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_each_iterate_is_that_of_the_paper(by: By, ranks: int) -> None:
    parts = synthetic(ranks, seed=ranks)
    expected = list(by_links(parts, 2, 9))
    seen: list[dict[int, Any]] = [{} for _ in range(ranks)]

    def work(comm: Any) -> None:
        gadmm(comm, parts[comm.rank], rho=2, steps=9, by=by, watch=seen[comm.rank].__setitem__)

    run(ranks, work)
    for rank in range(ranks):
        for step, thetas in enumerate(expected, 1):
            np.testing.assert_allclose(seen[rank][step], thetas[rank], atol=1e-8)


def test_both_ways_give_the_same_models_on_chains_that_are_drawn() -> None:
    parts = synthetic(7)
    ends = [
        run(7, lambda c, by=by: dgadmm(c, parts[c.rank], rho=5, steps=40, period=4, by=by))
        for by in (OneJob, Groups)
    ]
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one.model, other.model, atol=1e-9)


@pytest.mark.parametrize("by", [OneJob, Groups])
def test_over_the_switch_the_losses_are_those_of_one_process(system: System, by: By) -> None:
    parts = synthetic(8)
    best = optimum(parts)

    def work(comm: Any) -> list[float]:
        values: list[float] = []

        def watch(_step: int, model: Any) -> None:
            values.append(parts[comm.rank].value(model))

        dgadmm(comm, parts[comm.rank], rho=5, steps=30, period=12, by=by, watch=watch)
        return values

    over_switch, alone = np.array(system.run(8, work)), np.array(run(8, work))
    np.testing.assert_array_equal(over_switch, alone)
    gap = np.abs(over_switch.sum(axis=0) - best)
    assert gap[-1] < 1e-3 * gap[0]


def test_a_logistic_task_ends_where_scipy_does(rng: np.random.Generator) -> None:
    h, y = rng.standard_normal((60, 4)), np.sign(rng.standard_normal(60))
    parts = [Logistic(*part, 0.1 / 6, 1 / 60) for part in split_evenly(h, y, 6)]
    expected = minimize(lambda m: sum(p.value(m) for p in parts), np.zeros(4), tol=1e-12).x
    for method in (gadmm, dgadmm):
        for end in run(6, lambda c, method=method: method(c, parts[c.rank], rho=0.05, steps=400)):
            np.testing.assert_allclose(end.model, expected, atol=1e-5)


@pytest.mark.parametrize("by", [OneJob, Groups])
def test_who_gets_whose_sum(by: By) -> None:
    chain = [4, 0, 3, 1, 2]
    traffic = InProcessTraffic()

    def work(comm: Any) -> tuple[Any, Any]:
        neighbours = by(comm, Grid(20))
        neighbours.link(chain)
        mine = np.array([10.0**comm.rank])
        received = neighbours.send(HEADS, mine), neighbours.send(TAILS, mine)
        neighbours.close()
        return received

    got = run(5, work, traffic)
    # Heads are 4, 3, 2; tails 0 and 1.
    assert got == [(11000, None), (1100, None), (None, 10), (None, 11), (None, 1)]
    assert traffic.uploads == {OneJob: 5, Groups: 8}[by]


def test_bad_input_is_refused_on_all_ranks() -> None:
    parts = synthetic(4)
    assert "rho=0: a positive number is needed" in refusal(gadmm, parts, rho=0, steps=3)
    assert "period=0: at least 1" in refusal(dgadmm, parts, rho=1, steps=3, period=0)
    seeds = iter(range(4))
    said = refusal(lambda c, part: dgadmm(c, part, rho=1, steps=3, seed=next(seeds)), parts)
    assert said == "dgadmm: rank 0 has seed = 0, rank 1 has 1; all ranks need the same"
    parts[3] = LeastSquares(np.ones((1, 49)), np.ones(1))
    assert "rank 3 has 49; all ranks need the same" in refusal(gadmm, parts, rho=1, steps=3)
    parts[3] = LeastSquares(np.full((1, 50), np.inf), np.ones(1))
    assert "rank 3: NaN or infinity" in refusal(dgadmm, parts, rho=1, steps=3)
    alone = [LeastSquares(np.ones((1, 2)), np.ones(1))]
    assert "singular" in refusal(gadmm, alone, rho=1, steps=3)
