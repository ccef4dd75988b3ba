# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late or lost: what proxies do holds in every order, and faults are found."""

from __future__ import annotations

import pytest
from long_cases import marked
from p4reduce_model.late import (
    LATE_FAULTS,
    LATE_LARGE,
    LATE_SMALL,
    LateCase,
)

LONG = (
    *(case.name for case in LATE_LARGE),
    "late: coded, 2 ranks",
    "late: coded, 2 ranks, a loss",
    "late: deadline, 2 ranks, 1 behind at most",
    "late: deadline, 2 ranks, both needed, a loss",
    "after a loss, a sum that only some have is not handed on",
)


@pytest.mark.parametrize("case", marked((*LATE_SMALL, *LATE_LARGE), LONG))
def test_sums_are_right_and_end_in_every_order(case: LateCase) -> None:
    outcome = case.explore()
    if outcome.violation is not None:
        pytest.fail(outcome.describe(), pytrace=False)
    assert outcome.complete
    assert outcome.states > 100


@pytest.mark.parametrize("fault", marked(LATE_FAULTS, LONG))
def test_a_planted_fault_is_found(fault: LateCase) -> None:
    assert fault.explore().violation is not None
