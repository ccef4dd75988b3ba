# SPDX-License-Identifier: Apache-2.0
"""What `log_statistics` writes, read back from the real TensorBoard and MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_system import Ranks, TorchSystem, all_well

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)
NAMES = ("bytes_sent", "bytes_received", "step_seconds", "retransmissions", "level")
STEPS = 4


def run(system: TorchSystem, kind: str, directory: Path) -> list[Any]:
    ended = Ranks(system, 2, ["logged.py", kind, str(directory)], directory / "ranks").wait()
    all_well(ended)
    return ended


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(directory))
    read.Reload()
    return {
        tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]
    }


def as_figures(written: list[dict[str, float]], name: str) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(one[name], rel=1e-6)) for step, one in enumerate(written)]


def check(figures: list[dict[str, float]]) -> None:
    assert len(figures) == STEPS
    for one in figures:
        assert set(one) == {f"p4reduce/{name}" for name in NAMES}
        assert one["p4reduce/bytes_sent"] > 0
        assert one["p4reduce/step_seconds"] > 0
        assert 0 < one["p4reduce/level"] < 0.5  # a tenth of the blocks, in whole ones


@pytest.mark.timeout(300)
def test_tensorboard(system: TorchSystem, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    ended = run(system, "tensorboard", tmp_path)
    figures = ended[0].records[0]["figures"]
    check(figures)
    read = scalars(tmp_path)
    assert set(read) == set(figures[0])
    for name in read:
        assert read[name] == as_figures(figures, name)
    assert "SummaryWriter" in ended[0].lines[0]  # a logger of logging is refused
    assert "RootLogger" in ended[0].lines[0]


@pytest.mark.timeout(300)
def test_mlflow(system: TorchSystem, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    figures = run(system, "mlflow", tmp_path)[0].records[0]["figures"]
    check(figures)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    (found,) = client.search_runs(["0"])
    for name in figures[0]:
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted((one.step, one.value) for one in history) == as_figures(figures, name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "needs"), [("lightning", "lightning"), ("hugging_face", "transformers")]
)
def test_callbacks(system: TorchSystem, tmp_path: Path, kind: str, needs: str) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip(needs)
    if kind == "hugging_face":
        pytest.importorskip("accelerate")
    run(system, kind, tmp_path)
    read = scalars(tmp_path)
    assert [step for step, _ in read["p4reduce/bytes_sent"]] == [1, 2, 3, 4]
    assert all(value > 4 * 1024 for _, value in read["p4reduce/bytes_sent"])
