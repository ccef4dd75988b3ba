# SPDX-License-Identifier: Apache-2.0
"""Runs in which the demo itself kills something, and trains on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launched import Launched


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", ["restart-switch", "restart-controller"])
@pytest.mark.parametrize(
    ("where", "switches", "restarted"),
    [
        (["--ranks", "2"], 1, "the switch"),
        (["--tree", "2x1"], 3, "the root switch"),
        (["--ranks", "2", "--switches", "2"], 2, "switch a"),
        (["--ranks", "2", "--cores", "2"], 2, "the switch"),
    ],
    ids=["one switch", "tree", "two", "two cores"],
)
def test_a_run_ends_with_the_undisturbed_weights_when_something_is_killed(
    tmp_path: Path, fault: str, where: list[str], switches: int, restarted: str
) -> None:
    arguments = [*where, "--steps", "90", "--output", "out", "--switch", "embedded"]
    run = Launched(tmp_path, "run", *arguments, "--fault", fault)
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["problems"] == []
    assert summary["fault"]["name"] == fault
    assert summary["fault"]["undisturbed_weights_sha256"] == summary["weights_sha256"]
    assert summary["identical_on_all_ranks"] is True
    assert 30 <= summary["fault"]["step"] < 90
    assert summary["fault"]["away_seconds"] > 0
    assert summary["switches"] == switches
    killed = restarted if fault == "restart-switch" else "the controller"
    assert f"  {killed} was killed after" in run.output
    if fault == "restart-switch":
        assert summary["fault"]["recoveries"] >= 1
        assert summary["fault"]["pause_seconds"] > summary["fault"]["usual_seconds"]
        assert "looking for the switch" in run.output
    else:
        assert summary["fault"]["recoveries"] == 0
    assert "the same, bit for bit" in run.output


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_the_fault_comes_however_short_the_training_is(tmp_path: Path) -> None:
    """Nine steps are over before the launcher looks at them a second time."""
    arguments = ["--ranks", "2", "--steps", "9", "--output", "out", "--switch", "embedded"]
    run = Launched(tmp_path, "run", *arguments, "--fault", "restart-controller")
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["problems"] == []
    assert 3 <= summary["fault"]["step"] <= 6
    assert summary["fault"]["undisturbed_weights_sha256"] == summary["weights_sha256"]


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "where",
    [["--ranks", "3"], ["--tree", "3x1"], ["--ranks", "3", "--switches", "2"]],
    ids=["one switch", "tree", "two"],
)
def test_the_others_train_to_the_end_when_a_worker_is_killed(
    tmp_path: Path, where: list[str]
) -> None:
    arguments = [*where, "--steps", "90", "--output", "out", "--fault", "kill-worker"]
    run = Launched(tmp_path, "run", *arguments)
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    fault = summary["fault"]
    assert summary["problems"] == []
    assert fault["survivors"] == 2
    assert fault["resumed"] >= fault["step"] >= 30
    assert summary["identical_on_all_ranks"] is True
    assert summary["identical_results_on_all_ranks"] is True
    assert summary["error_of_bound"] <= 1, "sums are those of the ranks that were there"
    # The batches are the same, split over fewer ranks.
    assert abs(summary["test_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert not re.search(r"-[\d,]+ contributions/s", run.output), run.output
    assert re.search(r"rank 0 of job .*: WorkerLostError: .*rank 1", run.output)
    assert re.search(r"rank 0 of job .*: is rank 0 of 2 now", run.output)
    assert any("is rank 1 of 2 now" in text for text in fault["notices"]), "rank 2 closed the gap"
