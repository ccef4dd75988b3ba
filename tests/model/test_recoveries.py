# SPDX-License-Identifier: Apache-2.0
"""A rank's recovery in every order of what can happen, and every transition of its table."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from p4reduce.errors import P4ReduceError
from p4reduce.session.recovery import TRANSITIONS, RecoveryEvent, RecoveryState, after
from p4reduce_model.found import Walked
from p4reduce_model.recoveries import (
    AGREED,
    CLOSED,
    COMES_BACK,
    ENDS_ONCE,
    IN_TABLE,
    RECOVERIES_LARGE,
    RECOVERIES_SMALL,
    RECOVERY_FAULTS,
    SETTLED,
    RecoveryCase,
    RecoveryFault,
)

ROOT = Path(__file__).resolve().parents[2]
BREAKS = [AGREED, COMES_BACK, COMES_BACK, CLOSED, SETTLED, ENDS_ONCE]


def check(lives: Walked) -> None:
    if lives.violation is not None:
        pytest.fail(lives.describe(), pytrace=False)


def test_small_cases_hold_in_every_order_and_take_every_transition() -> None:
    missing = Walked(table=TRANSITIONS).missing
    for case in RECOVERIES_SMALL:
        lives = case.explore(20_000)
        check(lives)
        assert lives.complete, case.name
        missing &= lives.missing
    assert not missing


@pytest.mark.long
@pytest.mark.parametrize("case", RECOVERIES_LARGE, ids=lambda case: case.name)
def test_the_first_states_of_larger_cases_hold(case: RecoveryCase) -> None:
    lives = case.explore(1000)
    check(lives)
    assert lives.complete or lives.states > 1000


@pytest.mark.parametrize(
    ("fault", "broken"),
    list(zip(RECOVERY_FAULTS, BREAKS, strict=True)),
    ids=[fault.name for fault in RECOVERY_FAULTS],
)
def test_mistakes_are_found(fault: RecoveryFault, broken: str) -> None:
    lives = fault.hunt()
    assert lives.violation is not None
    assert lives.violation.invariant == broken


def test_a_transition_that_the_table_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = dict(TRANSITIONS[RecoveryState.AGREEING])
    del moves[RecoveryEvent.FAILED_THERE]
    monkeypatch.setitem(TRANSITIONS, RecoveryState.AGREEING, moves)
    lives = RecoveryCase().explore(20_000)
    assert lives.violation is not None
    assert lives.violation.invariant == IN_TABLE
    assert "no transition for FAILED_THERE" in str(lives.violation)


def test_what_is_not_in_the_table_is_an_error() -> None:
    with pytest.raises(P4ReduceError, match="HALTING, which has no transition for AGREED"):
        after(RecoveryState.HALTING, RecoveryEvent.AGREED)


def test_the_drawing_is_the_tables() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    drawing = tool["drawings"]()["recovery"]
    assert drawing in tool["drawn"]((ROOT / "docs" / "faults.md").read_text())
    assert drawing.count("-->") == 1 + sum(
        event not in {RecoveryEvent.FAILED, RecoveryEvent.UNWANTED}
        for moves in TRANSITIONS.values()
        for event in moves
    )
