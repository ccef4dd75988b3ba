# SPDX-License-Identifier: Apache-2.0
"""The verdict on a run, its picture, and its progress."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import p4reduce
import pytest
from p4reduce_lab.demo.config import TrainingConfig
from p4reduce_lab.demo.display import TrainingDisplay
from p4reduce_lab.demo.ranks.compressed import CompressionHistory
from p4reduce_lab.demo.ranks.report import ProgressReader, ProgressWriter, progress_path
from p4reduce_lab.demo.ranks.worker import RankTraining
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.demo.training.sgd import SgdProgress
from p4reduce_lab.demo.verdict.plot import plot
from p4reduce_lab.demo.verdict.summary import CompressionSummary, FaultSummary, Summary
from rich.console import Console

GOOD = Summary(
    switch="embedded",
    network="local",
    workers=4,
    steps=10,
    batch=128,
    parameters=9610,
    test_accuracy=0.97,
    reference_accuracy=0.972,
    final_loss=0.1,
    weights_sha256="00",
    identical_on_all_ranks=True,
    identical_results_on_all_ranks=True,
    max_relative_error=3e-8,
    error_of_bound=0.6,
    compared_elements=96110,
    contributions=4000,
    results=1000,
    retransmissions=2,
    round_trip_us=900.0,
    contributions_per_second=20000.0,
    training_seconds=0.2,
    seconds=5.0,
    outcomes={"round-opened": 1000},
)

COMPRESSED = replace(
    GOOD,
    test_accuracy=0.966,
    compression=CompressionSummary(
        name="cat",
        learning_rate=1.0,
        momentum=0.0,
        bandwidth=1e7,
        round_trip=1e-3,
        frame_seconds=5e-5,
        bytes=2_500_000,
        uncompressed_bytes=10_000_000,
        level_minimum=1.0,
        level_median=4.5,
        level_maximum=38.0,
        total_blocks=38,
        alpha_mean=0.55,
        uncompressed_accuracy=0.97,
        uncompressed_weights_sha256="11",
        uncompressed_seconds=0.4,
    ),
)


def test_a_good_run_has_no_problems() -> None:
    assert GOOD.problems() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_accuracy": 0.966}, "test accuracy 0.9660 differs from the reference's 0.9720"),
        ({"test_accuracy": float("nan")}, "test accuracy nan"),
        ({"identical_on_all_ranks": False}, "different weights"),
        ({"identical_results_on_all_ranks": False}, "different results"),
        ({"max_relative_error": 1.1e-6, "error_of_bound": 1.01}, "off by 1.10e-06"),
        ({"error_of_bound": float("nan")}, "nan times what its lanes' error bound allows"),
        ({"contributions": 4001}, "4001 contributions for 1000 rounds"),
    ],
)
def test_each_problem_is_named(change: dict[str, Any], message: str) -> None:
    (problem,) = replace(GOOD, **change).problems()
    assert message in problem


def test_summary_json_has_the_keys_that_others_rely_on(tmp_path: Path) -> None:
    GOOD.write(tmp_path / "summary.json")
    keys = json.loads((tmp_path / "summary.json").read_text()).keys()
    assert keys >= {
        "switch",
        "workers",
        "steps",
        "test_accuracy",
        "reference_accuracy",
        "identical_on_all_ranks",
        "max_relative_error",
        "contributions",
        "results",
        "retransmissions",
        "seconds",
    }


def test_the_printed_summary_does_not_hide_a_difference() -> None:
    assert any("bit-identical on 4 ranks" in line for line in GOOD.lines())
    bad = replace(GOOD, identical_on_all_ranks=False)
    assert any("DIFFERENT" in line for line in bad.lines())


def test_with_compression_the_whole_gradients_accuracy_must_be_the_references() -> None:
    assert COMPRESSED.problems() == COMPRESSED.warnings() == []
    assert COMPRESSED.compression is not None
    worse = replace(COMPRESSED.compression, uncompressed_accuracy=0.9)
    (problem,) = replace(COMPRESSED, compression=worse).problems()
    assert "test accuracy 0.9000 differs from the reference's 0.9720" in problem


@pytest.mark.parametrize(
    ("accuracy", "warnings", "problems"),
    [
        (0.99, 0, 0),
        (0.9651, 0, 0),
        (0.96, 1, 0),
        (0.925, 1, 0),
        (0.538, 0, 1),
        (float("nan"), 0, 1),
    ],
)
def test_the_verdict_compares_with_the_uncompressed_training(
    accuracy: float, warnings: int, problems: int, tmp_path: Path
) -> None:
    summary = replace(COMPRESSED, test_accuracy=accuracy)
    assert (len(summary.warnings()), len(summary.problems())) == (warnings, problems)
    for said in summary.warnings() + summary.problems():
        assert f"by cat the training ended at {accuracy:.2%}, " in said
    summary.write(tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["warnings"] == summary.warnings()
    assert written["problems"] == summary.problems()


@pytest.mark.parametrize(
    ("name", "momentum"),
    [("topk:0.1", 0), ("randomk:0.1/int8", 0), ("int8", 0.9), ("none", 0.9), ("cat", 0.9)],
)
def test_fixed_levels_with_feedback_are_trained_without_momentum(
    name: str, momentum: float
) -> None:
    config = TrainingConfig(compression=name)
    trained = config.compressed()
    assert trained.momentum == momentum
    # The step in the long run is the same.
    assert trained.learning_rate / (1 - trained.momentum) == pytest.approx(1.0)


def test_the_printed_summary_says_what_compression_saved_and_cost() -> None:
    assert COMPRESSED.compression is not None
    text = "\n".join(COMPRESSED.lines())
    assert "96.60%   (uncompressed: 97.00%; reference, summed by numpy: 97.20%)" in text
    assert (
        "cat, for a link measured as 10 Mbit/s with a round trip of 1 ms and 50 us per frame"
        in text
    )
    assert "4.5 of 38 in the median, 1 to 38, alpha 0.55" in text
    slow = replace(COMPRESSED.compression, frame_seconds=1.2345e-3, round_trip=2.5)
    text = "\n".join(slow.lines())
    assert "with a round trip of 2,500 ms and 1,234 us per frame" in text
    assert "75.0%: 2.5 MB a worker instead of 10.0 MB" in text


FAULT = FaultSummary(
    name="restart-switch",
    text="the switch was killed after 3 steps, up again 1.2 s later",
    step=3,
    away_seconds=1.2,
    pause_seconds=1.5,
    usual_seconds=0.011,
    notices={"rank 1 of job 'x': lost": 0.01, "rank 0 of job 'x': lost": 0.02},
    recoveries=1,
    undisturbed_weights_sha256="00",
    undisturbed_accuracy=0.97,
    survivors=4,
    resumed=None,
)


def test_after_a_fault_the_weights_must_be_the_undisturbed_ones() -> None:
    assert replace(GOOD, fault=FAULT).problems() == []
    (problem,) = replace(GOOD, fault=FAULT, weights_sha256="01").problems()
    assert "restart-switch" in problem
    assert "other weights than undisturbed" in problem


def test_fewer_ranks_may_end_with_other_weights_and_leave_rounds_behind() -> None:
    fewer = replace(FAULT, name="kill-worker", survivors=3, resumed=4)
    summary = replace(GOOD, fault=fewer, weights_sha256="01", contributions=3999)
    assert summary.problems() == []
    text = "\n".join(summary.lines())
    assert "bit-identical on 3 ranks" in text
    assert "3 workers went on after 4 steps" in text


def test_the_printed_summary_says_what_was_killed_and_what_came_of_it() -> None:
    text = "\n".join(replace(GOOD, fault=FAULT).lines())
    assert "the switch was killed after 3 steps, up again 1.2 s later" in text
    assert "after  0.02 s    rank 0 of job 'x': lost" in text
    assert "1.50 s for the step concerned (usually 11 ms)" in text
    assert "the same, bit for bit" in text
    assert "DIFFERENT" in "\n".join(FAULT.lines("ff"))


def test_courses_of_several_ranks_have_a_mean() -> None:
    one = CompressionHistory([1, 2], [0.5, None], [10, 30], [40, 90], 38)
    other = CompressionHistory([3, 2], [1.0, 0.5], [20, 30], [40, 90], 38)
    assert CompressionHistory.mean([one, other]) == CompressionHistory(
        [2, 2], [0.75, None], [15, 30], [40, 90], 38
    )


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    curve = Curve([2.3, 1.0, 0.5], [1, 3], [0.4, 0.9])
    plot(tmp_path / "p.png", curve, curve, title="t", caption="c")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_picture_of_a_compressed_training_is_larger(tmp_path: Path) -> None:
    curve = Curve([2.3, 1.0, 0.5], [1, 3], [0.4, 0.9])
    history = CompressionHistory([3, 2, 1], [0.9, 0.8, 0.7], [1e5, 2e5, 3e5], [2e5, 4e5, 6e5], 38)
    plot(tmp_path / "plain.png", curve, curve, title="t", caption="c")
    plot(tmp_path / "p.png", curve, curve, history, title="t", caption="c")
    plain, larger = (
        int.from_bytes((tmp_path / name).read_bytes()[20:24], "big")
        for name in ("plain.png", "p.png")
    )
    assert larger > 1.5 * plain, "a second row of panels"


def test_progress_is_followed_line_by_line(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path, rank=2)
    assert reader.poll() is None, "there is no file yet"
    writer = ProgressWriter(tmp_path, rank=2, steps=9)
    writer.write(SgdProgress(1, 2.5, None), contributions=10)
    sample = reader.poll()
    assert sample is not None
    assert (sample.step, sample.loss, sample.accuracy, sample.contributions) == (1, 2.5, None, 10)
    writer.write(SgdProgress(2, 2.0, 0.5), contributions=20)
    writer.close()
    with progress_path(tmp_path, 2).open("a") as file:
        file.write('{"step": 3, "lo')  # a line that is being written
    sample = reader.poll()
    assert sample is not None
    assert (sample.step, sample.accuracy) == (2, 0.5)
    assert reader.poll() == sample


class _Communicator:
    """One that counts from nothing again when it is formed again."""

    def __init__(self, sent: int) -> None:
        self.rank, self.size, self.job = 0, 2, "x"
        self.stats = p4reduce.Statistics(frames_sent=sent)

    def reform(self) -> _Communicator:
        return _Communicator(5)


def test_contributions_are_counted_over_the_loss_of_a_rank(tmp_path: Path) -> None:
    comm: Any = _Communicator(100)
    digits: Any = None
    rank = RankTraining(TrainingConfig(), tmp_path, digits, comm)
    for lives in range(3):
        assert rank.sent == 100 + 5 * lives
        rank.reform(p4reduce.WorkerLostError("lost", ranks=(1,)))


def test_the_last_step_is_always_due(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path, rank=0, steps=9)
    writer.write(SgdProgress(8, 1.0, None), contributions=1)
    assert not writer.due(SgdProgress(8, 1.0, None))
    assert writer.due(SgdProgress(9, 1.0, None))
    writer.close()


def test_without_a_terminal_progress_is_about_ten_plain_lines() -> None:
    stream = io.StringIO()
    with TrainingDisplay(Console(file=stream, width=200), steps=100) as shown:
        for step in range(1, 101):
            for _ in range(3):  # the launcher looks more often than there is news
                shown.show(SgdProgress(step, 0.5, 0.9), 12345.0)
    lines = stream.getvalue().splitlines()
    assert 8 <= len(lines) <= 13
    assert "100/100" in lines[-1]
    assert "12,345 contributions/s" in lines[-1]
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_progress_is_a_bar() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with TrainingDisplay(console, steps=330) as shown:
        shown.show(SgdProgress(330, 10.5, 0.9666), 117345.0)
    assert re.search(r"330/330 .*96.66%  117,345 contributions/s", stream.getvalue())
