# SPDX-License-Identifier: Apache-2.0
"""What the experiments stand on: gradients that are gradients, prices that add up."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from p4reduce.compression import Affine, Cat, Payload, Scheme, SwitchLink, TopK

pytest.importorskip("scipy", reason="the experiments need scipy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))
import study
from simulate import Trace, run, spent
from tasks import LogisticRegression, Network, Task, breast_cancer

# By name only: to import them takes seconds, and every test process reads this file.
pytestmark = [
    pytest.mark.skipif(find_spec(name) is None, reason=f"the experiments need {package}")
    for name, package in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib"))
]


@pytest.fixture(scope="module")
def cancer() -> Task:
    return breast_cancer()


def test_logistic_gradient_is_the_slope_of_the_loss(cancer: Task) -> None:
    random = np.random.default_rng(1)
    x = (0.3 * random.standard_normal(cancer.dimension)).astype(np.float32)
    direction = random.standard_normal(cancer.dimension).astype(np.float32)
    direction /= np.linalg.norm(direction)
    assert isinstance(cancer, LogisticRegression)
    sizes = [len(labels) for _, _, labels in cancer.shares]
    gradients = [cancer.gradient(rank, x, 0) for rank in range(4)]
    # The ranks' mean is the objective's gradient but for shares that differ by one sample.
    mean = np.average(gradients, axis=0, weights=sizes)
    slope = (cancer.loss(x + 0.01 * direction) - cancer.loss(x - 0.01 * direction)) / 0.02
    assert mean @ direction == pytest.approx(slope, rel=2e-3, abs=1e-5)


def test_network_gradient_is_the_slope_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Network(3)
    monkeypatch.setattr(task, "ranks", 1)
    monkeypatch.setattr(task, "BATCH", len(task.train[1]))
    x = task.start()
    gradient = task.gradient(0, x, 0)
    direction = gradient / np.linalg.norm(gradient)
    step = np.float32(1e-2)
    slope = (task.loss(x + step * direction) - task.loss(x - step * direction)) / (2 * step)
    assert np.linalg.norm(gradient) == pytest.approx(slope, rel=1e-2)


def test_steps_of_one_over_l_never_raise_the_loss(cancer: Task) -> None:
    dense, _ = study.uncompressed(cancer, 30, 0.9)
    assert (np.diff(dense.losses) < 0).all()


def test_payload_only_cat_is_the_fixed_level_one(cancer: Task) -> None:
    cat = run(cancer, lambda rank: Cat(world_size=4, unit=1, cost=Payload()), steps=20)
    share = 1 / cancer.dimension
    fixed = run(cancer, lambda rank: TopK(world_size=4, unit=1, density=share), steps=20)
    assert cat.levels == fixed.levels == [[1] * 4] * 20
    assert cat.losses == fixed.losses


def test_what_is_spent_is_the_sum_of_the_steps_prices(cancer: Task) -> None:
    trace = Trace(levels=[[1, 3, 0, 4], [400, 400, 496, 496]])
    paid = spent(trace, cancer, Affine(1.0, 100.0), Scheme.SPARSE, 1)
    bits = 9 + 32
    first = (bits * (1 + 3 + 4) + 3 * 100) / 4
    second = 496 * 32 + 100  # naming 400 of 496 costs more than sending all
    assert list(paid) == pytest.approx([first, first + second])
    link = SwitchLink(4, 1e7, 1e-3)
    trace.masks = [np.ones((4, 2), dtype=np.bool_)] * 2
    dense = link.dense_cost(Scheme.SPARSE.encoding(496, 256))
    assert list(spent(trace, cancer, link, Scheme.SPARSE, 256)) == pytest.approx([dense, 2 * dense])


@pytest.mark.long
def test_what_there_is_can_be_drawn(cancer: Task, tmp_path: Path) -> None:
    import report

    dense, _ = study.uncompressed(cancer, 4, 0.9)
    some = study.Study(cancer, dense, 0.0, 4, True, lambda text: None)
    outcomes = list(some.elements([1, 64]))
    report.plot_grid(outcomes, True, tmp_path / "bits.png", seconds=False)
    report.plot_grid(outcomes, False, tmp_path / "none.png", seconds=False)
    report.plot_levels(outcomes, tmp_path / "levels.png")
    assert (tmp_path / "bits.png").stat().st_size < 400_000
    assert (tmp_path / "levels.png").exists()
    assert not (tmp_path / "none.png").exists(), "there is nothing to draw without feedback"


def test_numbers_have_three_digits() -> None:
    import report

    wanted = {"999": 999.4, "1.00e3": 999.6, "0.00123": 0.0012345, "1.23e5": 123456.0}
    assert {report.number(value): value for value in wanted.values()} == wanted


def test_not_reached_is_said_of_the_run_that_did_not_arrive() -> None:
    import report

    def outcome(method: str, cost: float | None) -> study.Outcome:
        trace = Trace(levels=[[1] * 4])
        return study.Outcome("task", "payload", method, True, cost, 1, trace, np.ones(1))

    def cell(uncompressed: float | None, cat: float | None) -> str:
        names = (study.UNCOMPRESSED, "T = 1", study.CAT)
        costs = (uncompressed, 8.0, cat)
        outcomes = [outcome(name, cost) for name, cost in zip(names, costs, strict=True)]
        return (
            report.short_comparison(outcomes).splitlines()[-1].split(" | ")[-1].removesuffix(" |")
        )

    assert cell(40.0, 4.0) == "0.50, 10.0"
    assert cell(None, 4.0) == "0.50, -"
    assert cell(40.0, None) == "not reached"
