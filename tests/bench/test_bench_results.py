# SPDX-License-Identifier: Apache-2.0
"""What benchmarks make of several runs, and of several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import provenance

from bench.allreduce.comparison_pages import aims, variants, whole
from bench.program import figure_text
from bench.pytorch.accuracy import HEAD, README_HEAD, headline, lines, results
from bench.pytorch.accuracy_plot import plot
from bench.pytorch.narrow import lines as narrow_lines
from bench.pytorch.scaling import grown_lines, predicted_step, shared_rows
from bench.pytorch.stacked import SUMMARY, summary
from bench.pytorch.stacked_profile import shares
from bench.record import ROOT, Record, Section, differing, newest, site_page
from bench.run import Bench, merged, record


def test_several_runs_give_medians_and_their_spread() -> None:
    runs = [
        [{"name": "a", "bytes": 8, "median_ms": ms, "retransmissions": ms}]
        for ms in (3.0, 1.0, 2.0)
    ]
    assert merged(runs) == (
        [{"name": "a", "bytes": 8, "median_ms": 2.0, "retransmissions": 3.0,
          "least_median_ms": 1.0, "most_median_ms": 3.0}], 3
    )  # fmt: skip


def test_a_row_may_have_no_figure_of_something() -> None:
    runs = [[{"name": "a", "share_ms": None, "ms": ms}] for ms in (3.0, 1.0)]
    (row,), _ = merged(runs)
    assert row == {"name": "a", "share_ms": None, "ms": 2.0, "least_ms": 1.0, "most_ms": 3.0}


def test_a_run_that_lacks_a_row_is_left_out() -> None:
    rows = [{"name": "a", "ms": 1.0}, {"name": "b", "ms": 1.0}]
    assert merged([rows, rows[:1]]) == (rows, 1)


def test_figures_are_for_people() -> None:
    figures = [0.00125, 12.345, 999.4, 999.5, -999.7, 1234.5, 1234, None, "x"]
    wanted = ["0.00125", "12.3", "999", "1,000", "-1,000", "1,234", "1,234", "", "x"]
    assert [figure_text(figure) for figure in figures] == wanted


def test_all_rows_are_on_the_page_of_the_site() -> None:
    benches = [Bench("A", "a.b", ("--slow",)), Bench("C", "c"), Bench("D", "d", own_docs=True)]
    row = {"name": "x", "send_ns": 1500.0, "least_send_ns": 10.0, "most_send_ns": 2e3}
    results = [{"results": [row]}, {"failed": "it did"}, {"results": [row]}]
    measured = record(benches, {**provenance(), "benches": results})
    page = site_page([measured])
    assert "\n### A: `python -m bench.a.b --slow`\n" in page
    assert page.count("| x | 1,500 (10 to 2,000) |") == 1
    assert differing([measured], ROOT) == []


def test_a_section_goes_where_its_page_has_a_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- x -->\nold\n<!-- /x -->\n")
    begun = {"time": "2026-01-02T00:00:00Z", "commit": "abc"}
    sections = [Section("page.md", name, head=["n"], rows=[["1"]]) for name in ("x", "y")]
    measured = Record("a", "make a", begun, tuple(sections))
    assert differing([measured], tmp_path) == ["page.md: x", "page.md: y"]
    measured.show(tmp_path)
    assert differing([measured], tmp_path) == ["page.md: y"]
    assert page.read_text() == "<!-- x -->\n| n |\n| --- |\n| 1 |\n<!-- /x -->\n"


def run(method: str, seed: int, seconds: float | None) -> dict[str, Any]:
    return {
        "rate_mbit": 25.0, "ranks": 8, "model": "mlp", "method": method, "seed": seed,
        "seconds": seconds, "target": 0.9, "steps": 10, "step_ms": 20.0, "accuracy": 0.95,
        "megabytes_up": 1.0, "curve": [[0, 0.0, 2.0, 0.1], [5, 1.0, 0.5, 0.9]],
    }  # fmt: skip


def test_short_tables_have_a_column_per_system() -> None:
    def row(rate: str, name: str, median: str, times: str) -> list[str]:
        spread = f"{median} (1 s to 9 s)"
        return [rate, "4", "2 MiB", name, spread, "0.9", "1.1", "3 ms", times, "link"]

    rows = [
        row("10 Mbit/s", "**p4reduce**", "2 s", "1.5 (1 to 2)"),
        row("10 Mbit/s", "gloo", "3 s", "-"),
        row("10 Mbit/s", "**p4reduce int8**", "1 s", "3 (2 to 4)"),
        row("25 Mbit/s", "**p4reduce**", "1 s", "2 (1 to 3)"),
    ]
    head, table = whole(rows)
    assert head[3:5] == ["p4reduce", "Gloo"]
    assert table == [
        ["10 Mbit/s", "4", "2 MiB", "2 s", "3 s", "1.5 (1 to 2)", "0.9", "link"],
        ["25 Mbit/s", "4", "2 MiB", "1 s", "", "2 (1 to 3)", "0.9", "link"],
    ]
    assert variants(rows) == (
        ["links", "ranks", "tensor", "p4reduce int8"],
        [["10 Mbit/s", "4", "2 MiB", "3"]],
    )
    head, table = whole(rows[:3])  # each place has each variant: one table
    assert head[-1] == "p4reduce int8, times Gloo"
    assert table[0][-1] == "3"
    assert variants(rows[:3]) == ([], [])


def test_an_aim_is_a_row() -> None:
    rows = [
        ["speed", "1.5", "1.6", "4 ranks", "yes"],
        ["speed", "1.5", "1.4", "8 ranks", "no"],
        ["speed", "1.5", "0.7", "1 Gbit/s", "no claim: CPU"],
    ]
    assert aims(rows)[1] == [["speed", "1.5", "1.4 to 1.6", "1 of 2"]]


def test_time_to_accuracy_is_compared_seed_by_seed(tmp_path: Path) -> None:
    runs = [
        *(run("Gloo float32", seed, 10.0 + seed) for seed in range(3)),
        *(run("p4reduce CAT", seed, seconds) for seed, seconds in enumerate((5.0, 5.5, None))),
    ]
    gloo, cat = results(runs)
    assert (gloo["seconds"], gloo["speedup"]) == (11.0, 1.0)
    assert (cat["speedup"], cat["reached"], cat["seeds"]) == (2.0, 2, 3)
    assert cat["slowest_seconds"] == 5.5
    table = lines([gloo, cat])
    assert all(len(row) == len(HEAD) for row in table)
    assert table[0][4] == "-"
    assert table[1][3:5] == ["5.2 s (5.0 to 5.5), 2 of 3 seeds", "2.00 (2.00 to 2.00)"]
    assert headline([gloo, cat]) == []  # not with all seeds
    more = [run("p4reduce int8, feedback", seed, 5.0) for seed in range(3)]
    other = [run(method, 0, 40.0) | {"model": "cnn"} for method in ("Gloo float32", "p4reduce CAT")]
    rows = headline(results([*runs[:3], *more, *other]))
    assert all(len(row) == len(README_HEAD) for row in rows)
    assert ["25 Mbit/s", "mlp, to 90%", "11 s", "-", "-", "2.2× (int8, feedback)"] in rows
    assert ["25 Mbit/s", "cnn, to 90%", "40 s", "-", "-", "1× (CAT)"] in rows
    plot(runs, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_newest_record_of_each_name_is_shown(tmp_path: Path) -> None:
    begun = {"time": "2026-01-02T00:00:00Z", "commit": "abc+"}
    old = Record("a", "make a", begun, (Section("p.md", "x", rows=[["1"]], head=["n"]),))
    new = Record("a", "make a", begun | {"time": "2026-01-03T00:00:00Z"}, old.sections)
    assert new.save(tmp_path).name == "a-2026-01-03-abc.json"
    old.save(tmp_path)
    (found,) = newest(tmp_path)
    assert found.begun == new.begun
    assert found.sections[0].markdown() == "| n |\n| --- |\n| 1 |\n"


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"name": "b"}')
    with pytest.raises(LabError, match=r"b\.json is no record of a benchmark: 'sections'"):
        newest(tmp_path)


def test_pages_show_the_newest_records() -> None:
    records = newest()
    assert {record.name for record in records} >= {"accuracy", "bench", "compare"}
    assert differing(records, ROOT) == []


def test_efficiencies_are_those_of_the_steps() -> None:
    runs = [
        {"series": "shared", "backend": "p4reduce", "ranks": 1, "step_seconds": 0.8, "late": 0.0},
        {"series": "shared", "backend": "p4reduce", "ranks": 8, "step_seconds": 0.3, "late": 0.0},
    ]
    report = {"rate_mbit": 10.0, "emulation": {"parameters": 38_282}, "runs": runs}
    (row,) = [one for one in shared_rows(report) if "measured" in one]
    assert row["ranks"] == 8
    # Of 0.3 s the sum has 0.2 s: one rank would take 1 s with it.
    assert row["measured"] == pytest.approx({"step": 0.3, "of_one": 1 / 3, "alpha": 1.0 / 2.4})
    sent = 38_282 / 256 * 1102 * 8 / 10e6  # seconds, of the frames alone
    assert row["predicted"]["step"] == pytest.approx(0.1 + sent, rel=0.1)


def test_a_batch_that_grows_with_the_ranks() -> None:
    steps = {str(ranks): [100 // ranks + 50, None] for ranks in (1, 2, 4, 8, 16, 32, 64)}
    run = {"series": "grown", "backend": "p4reduce", "ranks": 2, "steps": 100, "seconds": 25.0,
           "step_seconds": 0.25}  # fmt: skip
    report = {
        "rate_mbit": 10.0,
        "emulation": {"parameters": 38_282, "steps": steps},
        "runs": [run],
    }
    one, two, *_, most = grown_lines(report)
    assert one[:5] == ["1", "16", "150", "150 (150 to 150), 1 of 2 seeds", "-"]
    step = predicted_step("p4reduce", 2, 1.0, 10.0, 38_282)
    assert two[4:] == [
        "100",
        f"{1e3 * step:.0f} ms",
        "250 ms",
        f"{100 * step:.1f} s",
        "25.0 s",
        f"{100 * step / 25 - 1:+.1%}",
        f"{15 / (100 * step):.1f}",
    ]
    assert most[0] == "64"
    assert most[6] == "-"


def _run(method: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    run = {"rate_mbit": 10.0, "ranks": 7, "model": "cnn", "method": method, "seed": 0,
           "seconds": seconds, "steps": 50, "step_ms": 100.0, "megabytes_up": 2.0,
           "accuracy": 0.93, "target": 0.93}  # fmt: skip
    return {**run, **more}


def test_lanes_are_compared_with_gloo_in_float32() -> None:
    runs = [_run("Gloo, float32", 10.0), _run("int4", 2.5), _run("votes, no momentum", None)]
    base, four, votes = narrow_lines(runs)
    assert base[0] == "Gloo, float32"
    assert base[-2:] == ["10.0 s", "1.00"]
    assert four == ["int4", "10 Mbit/s", "50", "93.0%", "40", "100 ms", "2.5 s", "4.00"]
    assert votes[-2:] == ["0 of 1 seeds", "-"]


def test_computing_alone_bounds_what_sums_can_gain() -> None:
    runs = [
        _run("Gloo float32", 50.0, megabytes_up=200.0, step_ms=1000.0),
        _run("Gloo, PowerSGD", 20.0, step_ms=400.0),
        _run("Gloo, local SGD, fp16, H = 8", 10.0, step_ms=200.0),
        _run("p4reduce int8, H = 8", 8.0, steps=40, step_ms=200.0),
        _run("computing alone", None, step_ms=150.0, steps=40),
    ]
    (row,) = summary(runs)
    shown = dict(zip(SUMMARY, row, strict=True))
    assert shown["of Gloo's best"] == "1.25"
    assert shown["of Gloo as in torch"] == "2.50"
    assert shown["of it at most"] == "1.67"  # 40 steps of 150 ms take 6 s
    assert shown["fewest bytes: Gloo float32 over ours"] == "100 (int8, H = 8)"
    without = summary([run for run in runs[1:] if run["seconds"] is not None])
    assert [cell for cell in without[0] if cell == "-"] == ["-"] * 4


def test_what_else_used_the_machine_is_left_out() -> None:
    theirs = [(10, 4.0, 400.0), (20, 4.0, 200.0), (10, 3.0, 300.0)]
    ours = [(10, 1.0, 100.0), (20, 4.0, 200.0)]
    runs = [
        _run("Gloo float32", 50.0, step_ms=1000.0),
        *(
            _run(name, seconds, seed=seed, steps=steps, step_ms=step)
            for name, some in (("Gloo, sparse", theirs), ("p4reduce, sparse", ours))
            for seed, (steps, seconds, step) in enumerate(some)
        ),
    ]
    (row,) = summary(runs)
    shown = dict(zip(SUMMARY, row, strict=True))
    assert shown["best of Gloo"] == "2.00 s (sparse)"  # 10 steps of 200 ms
    assert shown["of Gloo's best"] == "2.00 (1.00 to 4.00)"
    assert shown["of Gloo float32"] == "50.0"  # the first seed alone: 50 steps of 1 s, 10 of 100 ms


def test_of_a_sum_waiting_ends_when_the_last_rank_begins() -> None:
    ranks = [
        [("computing", 0.0, 1.0), ("sum", 1.5, 4.0), ("average", 1.0, 4.5)],
        [("computing", 0.0, 3.0), ("sum", 3.0, 4.0), ("average", 3.0, 4.0)],
    ]
    assert shares(ranks, steps=1) == {
        "computing": 2.0,
        "compressing": 0.0,
        "waiting": 0.75,
        "summing": 1.0,
        "rest": 0.5,
    }
