# SPDX-License-Identifier: Apache-2.0
"""The scorecard: a small one, its columns, and its sums beside those of processes."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from p4reduce.wire.format import EMPTY_FRAME_BYTES, HALF_FRAME_BYTES, PAYLOAD_FRAME_BYTES

pytest.importorskip("sklearn", reason="two tasks have its data")
pytest.importorskip("matplotlib", reason="the overview is a picture")

from bench.methods import scorecard
from bench.methods.check import compare
from bench.methods.entries import ENTRIES
from bench.methods.page import choice, rows_of
from bench.methods.program import Program
from bench.methods.single import Row
from bench.methods.tasks import tasks

COLUMNS = [
    "method",
    "task",
    "ranks",
    "iterations",
    "gap",
    "uploads",
    "bytes_up",
    "bytes_down",
    "rounds",
    "seconds",
]


@pytest.fixture
def seed() -> int:
    drawn = random.randrange(1 << 16)
    print(f"seed {drawn}")
    return drawn


@pytest.mark.long
def test_a_small_scorecard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """All methods on one linear and one logistic task."""
    arguments = ["scorecard", "--seed", str(seed), "--ranks", "4", "4", "--most", "30"]
    arguments += ["--tasks", "diabetes", "breast-cancer", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    scorecard.main()
    rows: list[dict[str, Any]] = json.loads((tmp_path / "scorecard.json").read_text())
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    known = [task for task in tasks(seed, (4, 4)) if task.name in ("diabetes", "breast-cancer")]
    assert [(row["task"], row["method"]) for row in rows] == [
        (task.name, method)
        for task in known
        for method, entry in ENTRIES.items()
        if entry.suits(task)
    ]
    for row in rows:
        assert row["ranks"] == 4
        assert 0 < row["iterations"] <= 30
        assert row["uploads"] <= row["bytes_up"] / PAYLOAD_FRAME_BYTES
        assert row["seconds"] > 2e-3 * row["rounds"]
    dense = next(row for row in rows if row["method"] == "gd")
    assert dense["uploads"] == 4 * (30 + 1)  # and what the ranks agree on first
    each = EMPTY_FRAME_BYTES + PAYLOAD_FRAME_BYTES
    assert 0 <= dense["bytes_up"] - each * dense["uploads"] <= 4 * each
    assert (tmp_path / "scorecard.png").stat().st_size > 10_000


def test_the_program_adds_as_numpy_does() -> None:
    rng = np.random.default_rng(5)
    program = Program(5)
    groups = [(0, 1, 2, 3, 4), (1, 3), (0, 2, 4)]
    for members in [*groups, *groups]:
        floats = [rng.standard_normal(700) * (rng.random(700) < 0.01) for _ in members]
        total = program(members, floats, None)
        np.testing.assert_allclose(total, np.sum(floats, axis=0), atol=5 * 8 / 2**31)
        wide = rng.integers(-(2**31), 2**31, (len(members), 300)).astype(np.int32)
        wrapped = program(members, list(wide), "wrap32")
        assert np.array_equal(wrapped, wide.sum(axis=0, dtype=np.int32))
        few = rng.integers(-9, 9, (len(members), 2100)).astype(np.int8)
        assert np.array_equal(program(members, list(few), None), few.sum(axis=0))
    with pytest.raises(OverflowError):
        program((0, 1), [np.full(3, 2**30, np.int32)] * 2, None)


@pytest.mark.long
def test_the_same_over_the_switch(seed: int) -> None:
    """With a process per rank: gaps to the digits shown, and at least the same bytes.

    Of LAG, silent ranks' frames complete some rounds, whose results then go out as two halves.
    """
    task = next(task for task in tasks(seed, (3, 3)) if task.name == "diabetes")
    for row in compare([("gd", task), ("lag-wk", task)], 20, seed, (3, 3)):
        assert len({f"{gap:.6g}" for gap in row["gaps"]}) == 1
        (up, up_there), (down, down_there) = row["up"], row["down"]
        assert up <= up_there <= 1.2 * up
        assert 0.9 * down <= down_there <= 1.2 * down


def test_halves_count_as_what_they_are() -> None:
    """One rank of three has numbers: its frame or an empty one completes the round."""
    program = Program(3)
    lengths = {EMPTY_FRAME_BYTES + PAYLOAD_FRAME_BYTES, EMPTY_FRAME_BYTES + 2 * HALF_FRAME_BYTES}
    seen = set()
    for _ in range(20):
        before = program.bytes_down
        program((0, 1, 2), [np.zeros(3), np.ones(3), np.zeros(3)], None)
        (moved,) = set(np.subtract(program.bytes_down, before).tolist())
        seen.add(moved)
    assert seen == lengths


def row(method: str, uploads: int, gap: float = 1e-5) -> Row:
    return Row(method, "diabetes", 4, 10, gap, uploads, 1000 * uploads, 2000, 10, 0.1)


def test_the_best_of_those_that_arrive_are_in_the_table() -> None:
    rows = [row("gd", 900), row("admm", 30), row("lag-wk", 3), row("cat", 300), row("gadmm", 90)]
    head, cells = choice([*rows, row("local-sgd", 1, gap=0.1)])
    assert head == ["scarce", "diabetes"]
    assert cells[0] == ["uploads", "`lag-wk` 300×, `admm` 30×, `gadmm` 10×"]


def test_without_a_scorecard_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run `make methods` first"):
        rows_of(tmp_path / "scorecard.json")
