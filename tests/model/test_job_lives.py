# SPDX-License-Identifier: Apache-2.0
"""The controller's jobs in every order, and every transition of their table."""

from __future__ import annotations

import os
import random
import runpy
from pathlib import Path

import pytest
from p4reduce_controller.jobs.job_states import (
    OVER,
    PUBLIC_STATES,
    RELEASED,
    TRANSITIONS,
    JobEvent,
    JobState,
    NoTransitionError,
    Stage,
    after,
)
from p4reduce_model.found import Walked
from p4reduce_model.job_lives import (
    IN_TABLE,
    JOBS_LARGE,
    JOBS_SMALL,
    JobCase,
    follow,
    wander,
)

ROOT = Path(__file__).resolve().parents[2]
WALKS = 3000
TAKEN_BACK = (
    "rank 0 joins",
    "rank 0 of job 1 attaches",
    "job 1 is on the switch",
    "the switch is lost",
    "job 1 is off the switch",
    "the switch is back",
    "rank 0 of job 1 asks for one as large",
    "call 0 for a new job, of job 1, ends",
    "rank 0 of job 2 leaves",
    "rank 0 of job 1 asks for one as large",
)


def check(lives: Walked, note: str = "") -> None:
    if lives.violation is not None:
        pytest.fail(f"{lives.describe()}\n{note}", pytrace=False)


@pytest.mark.parametrize("case", JOBS_SMALL, ids=lambda case: case.name)
def test_small_cases_hold_in_every_order(case: JobCase) -> None:
    lives = case.explore(10_000)
    check(lives)
    assert lives.complete


@pytest.mark.long
@pytest.mark.parametrize("case", JOBS_LARGE, ids=lambda case: case.name)
def test_the_first_states_of_larger_cases_hold(case: JobCase) -> None:
    lives = case.explore(400)
    check(lives)
    assert lives.states > 400


def test_every_transition_is_taken() -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    lives = wander(JobCase(2, 3), random.Random(seed), WALKS)
    check(lives, f"seed {seed}")
    assert lives.missing <= follow(JobCase(1, 3), TAKEN_BACK).walked


def test_a_transition_that_the_table_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = dict(TRANSITIONS[Stage.CONFIGURING])
    del moves[JobEvent.SWITCH_LOST]
    monkeypatch.setitem(TRANSITIONS, Stage.CONFIGURING, moves)
    lives = JobCase(1, 1).explore(10_000)
    assert lives.violation is not None
    assert lives.violation.invariant == IN_TABLE
    assert lives.trace[-1] == "the switch is lost"


def test_what_is_not_in_the_table_is_an_error() -> None:
    with pytest.raises(NoTransitionError, match="ENDED, which has no transition for FAILED"):
        after(Stage.ENDED, JobEvent.FAILED)


def test_stages_and_what_is_told_of_them() -> None:
    """Nothing that is over runs again, and what has its entries deleted gets rid of them."""
    assert PUBLIC_STATES.keys() == set(Stage)
    for stage, moves in TRANSITIONS.items():
        if stage in OVER:
            assert set(moves.values()) <= OVER
        if stage in OVER - RELEASED:
            assert moves[JobEvent.RELEASED] in RELEASED
        if PUBLIC_STATES[stage] is JobState.ENDED:
            assert {PUBLIC_STATES[to] for to in moves.values()} == {JobState.ENDED}


def test_the_drawing_is_the_tables() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    drawing = tool["drawings"]()["job"]
    assert drawing in tool["drawn"]((ROOT / "docs" / "faults.md").read_text())
    assert drawing.count("-->") == 1 + sum(
        event is not JobEvent.DELETED for moves in TRANSITIONS.values() for event in moves
    )
