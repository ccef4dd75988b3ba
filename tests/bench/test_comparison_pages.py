# SPDX-License-Identifier: Apache-2.0
"""Which record a comparison becomes: one of links, of UDP, or of one machine."""

from __future__ import annotations

import pytest
from p4reduce_lab.compare.cells import ETHERNET, UDP, CompareCell, dense_cases
from p4reduce_lab.compare.contenders import ReductionCost
from p4reduce_lab.compare.results import rows_of
from p4reduce_lab.compare.run import ComparisonReport

from bench.allreduce.comparison_pages import record


def report(links: str, rates: list[float | None]) -> ComparisonReport:
    """A comparison of 4 MiB by 4 ranks at each rate."""
    turn = ReductionCost(0.01, 0.003, 0.004, 0.5, 0.5, 0, 0, 0)
    rows = []
    for rate in rates:
        cell = CompareCell(4, rate, 4 << 20, tuple(dense_cases(("p4reduce", "gloo"))), 1, links)
        rows += rows_of(cell, {case: [turn] for case in cell.cases})
    begun = {"time": "2026-11-25T12:00:00Z", "commit": "0123456789"}
    return ComparisonReport(begun, {"links": links}, tuple(rows), 1.0)


@pytest.mark.parametrize(
    ("links", "rates", "name"),
    [
        (ETHERNET, [100.0, None], "compare"),
        (UDP, [None], "compare-udp"),
        (ETHERNET, [None], "compare-one-machine"),
    ],
)
def test_the_record_is_named_for_its_links(
    links: str, rates: list[float | None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without links replaces neither the standard tables nor the headline."""
    monkeypatch.setattr("bench.allreduce.comparison_pages.introduction", lambda _report: "")
    found = record(report(links, rates), "")
    assert found.name == name
    assert name in [section.name for section in found.sections]
    others = {"compare-aims", "compare-variants"} & {section.name for section in found.sections}
    assert bool(others) == (name == "compare")
