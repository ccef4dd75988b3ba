# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late or lost: what proxies do holds in every order, and faults are found."""

from __future__ import annotations

import pytest
from p4reduce_model.late import (
    LATE_FAULTS,
    LATE_LARGE,
    LATE_SMALL,
    LateCase,
)

# The two largest of the small ones, too, are for make test-long.
_LONG = ("late: coded, 2 ranks, a loss", "late: deadline, 2 ranks, 1 behind at most")
SIZES = [
    pytest.param(case, marks=pytest.mark.long) if case in LATE_LARGE or case.name in _LONG else case
    for case in (*LATE_SMALL, *LATE_LARGE)
]


def name_of(case: object) -> str | None:
    return case.name if isinstance(case, LateCase) else None


@pytest.mark.parametrize("case", SIZES, ids=name_of)
def test_sums_are_right_and_end_in_every_order(case: LateCase) -> None:
    outcome = case.explore()
    if outcome.violation is not None:
        pytest.fail(outcome.describe(), pytrace=False)
    assert outcome.complete
    assert outcome.states > 100


@pytest.mark.parametrize("fault", LATE_FAULTS, ids=name_of)
def test_a_planted_fault_is_found(fault: LateCase) -> None:
    assert fault.explore().violation is not None
