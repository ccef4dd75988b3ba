# SPDX-License-Identifier: Apache-2.0
"""DS-LSR1 beside the method written out for one process, and what it sums."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from p4reduce.methods.curved_network import CurvedNetwork
from p4reduce.methods.dslsr1 import ACCEPT, BAD, FORCING, GOOD, dslsr1, inverse_of, steihaug
from p4reduce.methods.in_process import InProcess, InProcessTraffic, outcomes_of, run
from worker_system import System

MEMORY, STEPS, RANKS = 6, 25, 3


def network(rng: np.random.Generator, ranks: int) -> list[CurvedNetwork]:
    """Parts of different sizes of a task that a line does not solve."""
    samples = rng.standard_normal((40 * ranks, 5))
    labels = (samples[:, 0] * samples[:, 1] > 0).astype(int) + (samples[:, 2] > 1)
    cuts = np.cumsum(20 + 15 * np.arange(ranks))[:-1]
    pairs = zip(np.split(samples, cuts), np.split(labels, cuts), strict=True)
    return [CurvedNetwork(features, some, hidden=6, classes=3) for features, some in pairs]


def serial(parts: list[CurvedNetwork], model: Any, seed: int) -> list[Any]:
    """All iterates, with B as a matrix and steps found as the textbook has them."""

    def value(at: Any) -> float:
        return sum(part.value(at) for part in parts)

    radius, iterates = 1.0, []
    for step in range(1, STEPS + 1):
        s = np.random.default_rng([seed, step]).standard_normal((len(model), MEMORY))
        hessian_s = sum(part.hessian_product(model, s) for part in parts)
        matrix = s.T @ hessian_s
        b = hessian_s @ np.linalg.solve((matrix + matrix.T) / 2, hessian_s.T)
        g = sum(part.gradient(model) for part in parts)
        p, r, d = np.zeros_like(g), g.copy(), -g
        while np.linalg.norm(r) > FORCING * np.linalg.norm(g):
            curvature = d @ b @ d
            alpha = r @ r / curvature if curvature > 0 else np.inf
            if curvature <= 0 or np.linalg.norm(p + alpha * d) >= radius:
                roots = np.roots([d @ d, 2 * p @ d, p @ p - radius**2])
                p = p + roots.max() * d
                break
            p, old = p + alpha * d, r @ r
            r = r + alpha * (b @ d)
            d = -r + r @ r / old * d
        ratio = (value(model + p) - value(model)) / (g @ p + p @ b @ p / 2)
        if ratio > GOOD:
            radius *= 2
        elif ratio < BAD:
            radius /= 2
        if ratio > ACCEPT:
            model = model + p
        iterates.append(model)
    return iterates


def iterates_of(parts: list[CurvedNetwork], start: Any, seed: int, **more: Any) -> Any:
    """Those of rank 0, and what was summed."""
    traffic, found = InProcessTraffic(), []

    def work(comm: InProcess) -> Any:
        def watch(_step: int, model: Any) -> None:
            if comm.rank == 0:
                found.append((model, traffic.elements, traffic.calls))

        settings = {"steps": STEPS, "memory": MEMORY, "seed": seed, "start": start, **more}
        return dslsr1(comm, parts[comm.rank], watch=watch, **settings).model

    models = run(len(parts), work, traffic)
    assert len({model.tobytes() for model in models}) == 1
    return found


@pytest.mark.parametrize("naive", [False, True])
def test_the_same_iterates_as_in_one_process(rng: np.random.Generator, naive: bool) -> None:
    parts, seed = network(rng, RANKS), int(rng.integers(1 << 30))
    start = parts[0].start(seed)
    found = iterates_of(parts, start, seed, naive=naive)
    for (model, _, _), wanted in zip(found, serial(parts, start, seed), strict=True):
        np.testing.assert_allclose(model, wanted, atol=1e-6)
    assert sum(part.value(found[-1][0]) for part in parts) < 0.7 * sum(
        part.value(start) for part in parts
    )


def test_floats_of_an_iteration(rng: np.random.Generator) -> None:
    """At most d + 1 + m² + n_cg(d + m) + d, where a product is two sums; the naive form has m·d."""
    parts = network(rng, RANKS)
    d = parts[0].size
    start = parts[0].start(1)
    before, calls = 0, 0
    for number, (_, elements, so_far) in enumerate(iterates_of(parts, start, 1)):
        if number:
            # f, maybe g, M, and two sums per product.
            products = (so_far - calls - 2) // 2
            assert elements - before <= d + 1 + MEMORY**2 + products * (d + MEMORY) + d
        before, calls = elements, so_far
    naive = iterates_of(parts, start, 1, naive=True)
    refused = d + MEMORY * d + 1  # no new gradient then
    for (_, first, _), (_, second, _) in itertools.pairwise(naive):
        assert second - first in (refused, refused - d)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_quarter_of_the_floats_on_digits() -> None:
    """A network of 2,410 parameters, m = 16, beside summing Y itself."""
    datasets = pytest.importorskip("sklearn.datasets", reason="it has the data")
    data = datasets.load_digits()
    pairs = zip(np.array_split(data.data[:1200] / 16, 4), np.array_split(data.target[:1200], 4))  # noqa: B905
    parts = [CurvedNetwork(*pair, hidden=32, classes=10) for pair in pairs]
    traffic = InProcessTraffic()
    settings: dict[str, Any] = {"steps": 60, "memory": 16, "start": parts[0].start(0)}
    run(4, lambda comm: dslsr1(comm, parts[comm.rank], **settings), traffic)
    naive = 60 * 16 * parts[0].size  # Y alone
    print(f"{naive / traffic.elements:.2f} times less than Y alone")
    assert traffic.elements < naive / 4


def test_over_the_switch(system: System, rng: np.random.Generator) -> None:
    """Three digits, after steps that double what lanes round."""
    parts = network(rng, RANKS)
    start = parts[0].start(2)
    settings: dict[str, Any] = {"steps": 8, "memory": 4, "start": start}

    def work(comm: Any) -> Any:
        return dslsr1(comm, parts[comm.rank], **settings).model

    wanted = run(RANKS, work)[0]
    for model in system.run(RANKS, work):
        np.testing.assert_allclose(model, wanted, atol=1e-3 * np.abs(wanted).max())


def test_pairs_without_curvature_are_skipped(rng: np.random.Generator) -> None:
    basis = rng.standard_normal((7, 4))
    matrix = basis @ np.diag([3.0, -2.0, 1.0, -0.5]) @ basis.T  # of rank 4
    kept, inverse = inverse_of(matrix)
    assert kept == [0, 1, 2, 3]
    np.testing.assert_allclose(inverse @ matrix[:4, :4], np.eye(4), atol=1e-8)
    assert inverse_of(np.zeros((3, 3)))[0] == []


def test_a_direction_that_bends_down_is_followed_to_the_edge() -> None:
    step, promised = steihaug(np.array([1.0, 0.0]), lambda q: -q, 2.0)
    np.testing.assert_allclose(step, [-2.0, 0.0])
    assert promised == pytest.approx(4.0)


def test_the_networks_hessian(rng: np.random.Generator) -> None:
    (part,) = network(rng, 1)
    model, way = part.start(3), rng.standard_normal((part.size, 2))
    found = part.hessian_product(model, way)
    step = 1e-6
    for column, along in zip(found.T, way.T, strict=True):
        ahead, behind = part.gradient(model + step * along), part.gradient(model - step * along)
        np.testing.assert_allclose(column, (ahead - behind) / (2 * step), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory": 0}, "rank 1: memory=0: at least 1 is needed"),
        ({"radius": -1.0}, "rank 1: radius=-1: a positive number is needed"),
        ({"start": np.zeros(3)}, "rank 1: start has shape (3,)"),
        ({"seed": 9}, "rank 0 has seed = 0, rank 1 has 9; all ranks need the same"),
        ({"steps": 4}, "rank 0 has steps = 3, rank 1 has 4; all ranks need the same"),
    ],
)
def test_bad_settings_are_an_error_on_all(
    rng: np.random.Generator, change: dict[str, Any], says: str
) -> None:
    parts = network(rng, RANKS)

    def work(comm: InProcess) -> Any:
        settings = {"steps": 3, **(change if comm.rank == 1 else {})}
        return dslsr1(comm, parts[comm.rank], **settings)

    errors = outcomes_of(RANKS, work)
    assert {type(error) for error in errors} == {ValueError}
    assert all(says in str(error) for error in errors), errors


class Far:
    """f = w²/2 of one rank: too large for lanes where its gradient is not."""

    size = 1

    def trouble(self) -> str:
        return ""

    def value(self, model: Any) -> float:
        return float(model @ model / 2)

    def gradient(self, model: Any) -> Any:
        return model.copy()

    def hessian_product(self, model: Any, directions: Any) -> Any:
        return directions.copy()


def test_an_objective_too_large_at_the_start_is_an_error() -> None:
    errors = outcomes_of(2, lambda comm: dslsr1(comm, Far(), steps=3, start=np.array([2e18])))
    assert {type(error) for error in errors} == {ValueError}
    assert all("f is too large or not finite on all ranks" in str(error) for error in errors)
