# SPDX-License-Identifier: Apache-2.0
"""From turns to rows, tables, pictures and what was aimed at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from p4reduce_lab.compare.cells import (
    CompareCase,
    CompareCell,
    dense_cases,
    narrow_cases,
    sparse_cases,
)
from p4reduce_lab.compare.contenders import ReductionCost
from p4reduce_lab.compare.pictures import draw
from p4reduce_lab.compare.results import (
    HEAD,
    ResultRow,
    aims_table,
    cells_of_table,
    headline,
    limit_of,
    rows_of,
)
from p4reduce_lab.compare.run import ComparisonReport, draw_pictures, introduction
from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import provenance

MIB = 1 << 20
BOTH = ("p4reduce", "gloo")


def turn(seconds: float, busiest: float = 0.1, machine: float = 0.2) -> ReductionCost:
    return ReductionCost(seconds, 0.01, 0.02, busiest, machine, 2_300_000, 2_400_000, 0)


def cell(ranks: int = 4, rate: float | None = 10, size: int = 2 * MIB) -> CompareCell:
    cases = [
        *dense_cases(BOTH),
        *narrow_cases(BOTH, ("int16", "int8")),
        *sparse_cases((0.1, 0.01)),
    ]
    return CompareCell(ranks, rate, size, tuple(cases), 3)


def measured(cell: CompareCell, slower: float = 1.1, **more: float) -> list[ResultRow]:
    """As if each case had taken that many times its bound, and a little more each turn."""
    return rows_of(
        cell,
        {
            case: [
                turn(slower * case.bound(cell.ranks, cell.size, cell.rate or 1e4) * factor, **more)
                for factor in (1.0, 1.01, 0.99)
            ]
            for case in cell.cases
        },
    )


def test_medians_spreads_and_shares() -> None:
    own, gloo = ({row.name: row for row in measured(cell())}[name] for name in ("p4reduce", "gloo"))
    bound = CompareCase("p4reduce", "int32").bound(4, 2 * MIB, 10)
    assert own.seconds == pytest.approx(1.1 * bound)
    assert (own.fastest_seconds, own.slowest_seconds) == pytest.approx(
        (1.1 * 0.99 * bound, 1.1 * 1.01 * bound)
    )
    assert own.share_of_bound == pytest.approx(1 / 1.1)
    assert own.times_plain == pytest.approx(1.1 * bound / (2 * MIB * 8 / 10e6))
    # Turn by turn: both are slower in the same turns.
    assert own.times_gloo == pytest.approx(gloo.seconds / own.seconds)
    assert own.least_times_gloo == pytest.approx(own.most_times_gloo)
    assert own.limit == "link"


@pytest.mark.parametrize(
    ("share", "busiest", "machine", "limit"),
    [
        (0.9, 0.5, 1.0, "link"),  # at the link, whatever else the machine does
        (0.5, 0.95, 0.5, "CPU"),
        (0.5, 0.3, 0.97, "CPU"),
        (0.5, 0.3, 0.5, "waiting"),
    ],
)
def test_what_is_the_limit(share: float, busiest: float, machine: float, limit: str) -> None:
    assert limit_of(share, busiest, machine) == limit


def test_aims_are_told_where_the_link_is_the_limit() -> None:
    rows = measured(cell(8)) + measured(cell(4, 100, 16 * MIB), slower=3, machine=1.0)
    lines = aims_table(rows)
    by_text = {(line[0], line[3].split(",")[0]): line[4] for line in lines}
    assert by_text["int8, 8 ranks, times Gloo's float32", "8 ranks"] == "yes"
    assert by_text["float32, share of our own wire bound", "8 ranks"] == "no"  # 1 / 1.1
    assert by_text["float32, 4 ranks, times Gloo", "4 ranks"] == "no claim: CPU"


def test_without_gloo_there_is_no_aim_beside_gloo() -> None:
    rows = [replace(row, times_gloo=0.0) for row in measured(cell(8))]
    assert {line[0] for line in aims_table(rows)} == {"float32, share of our own wire bound"}


def test_small_tensors_are_no_claim() -> None:
    assert aims_table(measured(cell(8, 1000, 4096))) == []


def test_without_links_it_is_how_near_to_gloo() -> None:
    rows = measured(cell(4, None, 4 * MIB))
    assert all(row.bound_seconds == row.times_plain == 0 for row in rows)
    ((_, most, figure, where, reached),) = aims_table(rows)
    assert (most, where) == ("at most 2", "4 ranks, one machine")
    assert reached == ("yes" if float(figure) <= 2 else "no")


def report() -> ComparisonReport:
    rows: list[ResultRow] = []
    for ranks in (2, 4, 8):
        rows += measured(cell(ranks)) + measured(cell(ranks, 100, 16 * MIB))
    rows += measured(cell(4, 100, 4096)) + measured(cell(4, None))
    begun = provenance("torch")
    settings = {"switch": "embedded", "queue_bytes": 1 << 18, "congestion_control": "cubic"}
    return ComparisonReport(begun, settings, tuple(rows), 12.0)


def test_the_headline_is_of_the_most_ranks_and_says_only_what_the_links_allow() -> None:
    text = headline(report().rows)
    assert text.startswith("Measured beside PyTorch's Gloo on the same links (8 ranks, ")
    for claim in ("float32 gradients", "lanes of 8 bits", "1 % of the blocks", "others on each"):
        assert claim in text
    assert headline(measured(cell(8), slower=3, machine=1.0)) == ""  # the processor's limit
    assert headline([row for row in report().rows if row.contender == "gloo"]) == ""


def test_a_report_can_be_read_again(tmp_path: Path) -> None:
    written = report()
    path = tmp_path / "compare.json"
    path.write_text(json.dumps(written.json()))
    assert ComparisonReport.read(path) == written
    path.write_text("{}")
    with pytest.raises(LabError, match="not a result of `p4reduce-lab compare`"):
        ComparisonReport.read(path)


def test_questions_without_figures_have_no_picture(tmp_path: Path) -> None:
    rows = [row for row in measured(cell(4)) if row.contender == "gloo"]
    assert draw(rows, tmp_path, "here", "compare") == []


@pytest.mark.long
def test_a_report_is_introduced_and_has_pictures(tmp_path: Path) -> None:
    text = introduction(report()) + draw_pictures(report(), tmp_path / "images", "compare")
    assert text.startswith("Measured 2")
    assert "embedded switch; TCP by cubic; queues of 256 KiB" in text
    aims = aims_table(report().rows)
    assert ["1 % of the blocks, aligned, times Gloo", "50"] in [row[:2] for row in aims]
    rows = cells_of_table(report().rows)
    assert all(len(row) == len(HEAD) for row in rows)
    for question in ("sizes", "ranks", "rates", "lanes", "densities"):
        assert f"?](images/compare-{question}.png)\n" in text
        picture = tmp_path / "images" / f"compare-{question}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
