# SPDX-License-Identifier: Apache-2.0
"""The protocol holds in every state of the small cases: docs/model.md."""

from __future__ import annotations

import pytest
from long_cases import marked
from p4reduce_model.cases import LARGE, SMALL
from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.scenario import Call, Scenario
from p4reduce_model.system import System
from p4reduce_model.trace import describe


def explored(scenario: Scenario, *, reduce: bool = True) -> Outcome:
    system = System(scenario)
    outcome = explore(system, reduce=reduce)
    if outcome.violation is not None:
        pytest.fail(describe(system, outcome), pytrace=False)
    return outcome


LONG = (
    "3 classes",
    "windows",
    "a rank is lost",
    "recovery",
    "recovery, twice",
    "recovery, 2 slots",
    "a rank is lost, zeros",
    "a rank is lost, 2 slots",
    "mismatch, 2 slots",
    "late ranks",
)


def test_a_name_says_which_case_it_is() -> None:
    names = [scenario.name for scenario in (*SMALL, *LARGE)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("scenario", marked(SMALL, LONG))
def test_the_protocol_holds_in_every_state(scenario: Scenario) -> None:
    assert explored(scenario).complete


@pytest.mark.long
@pytest.mark.parametrize(
    ("leaves", "lives"), [(1, ((Call(2),),)), (1, ((Call(1),), (Call(0),))), (2, ((Call(1),),))]
)
def test_leaving_out_frames_hides_no_state(
    leaves: int, lives: tuple[tuple[Call, ...], ...]
) -> None:
    scenario = Scenario("small", ranks=2, leaves=leaves, slots=1, lives=lives)
    some, all_ = explored(scenario), explored(scenario, reduce=False)
    assert some.cores == all_.cores
    assert some.states < all_.states
    assert some.tried > 0
