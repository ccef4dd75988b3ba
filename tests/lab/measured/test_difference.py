# SPDX-License-Identifier: Apache-2.0
"""What is told between two result files, and what is noise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from p4reduce_lab.cli import commands
from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.measured.difference import (
    difference,
    direction,
    find_results,
    lines,
    read_results,
)


def bench(*rows: dict[str, Any], load: float = 0.1, cpu: str = "x") -> dict[str, Any]:
    return {
        "machine": {"cpu": cpu, "cores": 2},
        "load": load,
        "benches": [{"script": "some.script", "arguments": [], "results": list(rows)}],
    }


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("seconds", -1),
        ("median_ms", -1),
        ("cpu_seconds", -1),
        ("send_ns", -1),
        ("contributions_per_second", 1),
        ("goodput_mbit_s", 1),
        ("times_gloo", 1),
        ("share_of_bound", 1),
        ("speedup", 1),
        ("fastest_seconds", None),
        ("most_times_gloo", None),
        ("bound_seconds", None),
        ("bytes", None),
        ("repeated", None),
        ("retransmissions", None),
        ("rate_mbit", None),
    ],
)
def test_more_of_what_is_better(name: str, better: int | None) -> None:
    assert direction(name) == better


def test_a_figure_without_spread_may_differ_by_a_fifth() -> None:
    before = bench({"name": "a", "median_ms": 10.0}, {"name": "b", "frames_per_second": 100.0})
    after = bench({"name": "a", "median_ms": 11.9}, {"name": "b", "frames_per_second": 60.0})
    found = difference(before, after)
    assert [(one.name, round(one.worse, 3)) for one in found.slower] == [
        ("frames_per_second", round(100 / 60 - 1, 3))
    ]
    assert not found.faster
    assert [one.name for one in difference(before, after, noise=0.1).slower] == [
        "frames_per_second",
        "median_ms",
    ]
    assert [one.name for one in difference(after, before).faster] == ["frames_per_second"]


@pytest.mark.parametrize(
    ("spread", "beyond"),
    [((9.0, 11.5, 11.0, 13.0), False), ((9.0, 10.5, 11.0, 13.0), True)],
    ids=["overlap", "apart"],
)
def test_a_figure_with_a_spread_differs_where_the_spreads_do_not_overlap(
    spread: tuple[float, float, float, float], beyond: bool
) -> None:
    rows = [
        {"name": "a", "ranks": 4, "seconds": middle, "fastest_seconds": low, "slowest_seconds": top}
        for middle, low, top in ((10.0, *spread[:2]), (12.0, *spread[2:]))
    ]
    found = difference({"results": [rows[0]]}, {"results": [rows[1]]})
    (change,) = found.changes
    assert change.by_spread
    assert change.beyond == beyond
    assert change.worse == pytest.approx(0.2)


def test_rows_are_told_apart_by_what_was_measured() -> None:
    before = bench(*({"name": "a", "bytes": size, "seconds": 1.0} for size in (10, 20)))
    after = bench(*({"name": "a", "bytes": size, "seconds": 2.0} for size in (20, 30)))
    found = difference(before, after)
    (change,) = found.changes
    assert "bytes 20" in change.where
    assert len(found.only_before) == len(found.only_after) == 1


def test_what_cannot_be_compared_is_said() -> None:
    found = difference(bench(load=3.0), bench(cpu="y"))
    text = "\n".join(lines(found, ["one", "two"]))
    assert "WARNING: not the same cpu: x and y" in text
    assert "WARNING: something else was running before the first one began: a load of 3" in text


def test_results_are_found_by_file_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "results-0123456789.json"
    path.write_text(json.dumps(bench()))
    assert find_results(str(path), []) == path
    assert find_results("01234", [tmp_path]) == path
    assert find_results("0123456789abcdef0123", [tmp_path]) == path
    with pytest.raises(ArgumentsError, match="no results of a commit of that name"):
        find_results("fedcba", [tmp_path])
    (tmp_path / "compare-0123456789.json").write_text("{}")
    with pytest.raises(ArgumentsError, match="several results are of commit 01234"):
        find_results("01234", [tmp_path])
    for text in ("{}", "7"):
        path.write_text(text)
        with pytest.raises(ArgumentsError, match="not a result of `make bench`"):
            read_results(path)
    path.write_text("{")
    with pytest.raises(ArgumentsError, match="not a result file"):
        read_results(path)


def test_exit_code_1_says_nothing_but_slower(tmp_path: Path) -> None:
    """A job of CI has to tell what got slower from a file that is not there."""
    command = [sys.executable, "-m", "p4reduce_lab", "bench-diff", "no.json", "no.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "there is no file 'no.json'" in done.stderr


def test_the_command_fails_where_something_got_slower(tmp_path: Path) -> None:
    paths = []
    for number, milliseconds in enumerate((10.0, 30.0)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(bench({"name": "a", "median_ms": milliseconds})))
        paths.append(str(path))
    worse = CliRunner().invoke(commands, ["bench-diff", *paths])
    assert worse.exit_code == 1
    assert "slower: 1\n  +200.0%  median_ms: 10 -> 30" in worse.output
    better = CliRunner().invoke(commands, ["bench-diff", *reversed(paths)])
    assert better.exit_code == 0
    assert "faster: 1\n   -66.7%  median_ms: 30 -> 10" in better.output
