# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark of this package and prints one table: `make bench`.

Each writes its figures as JSON; all of them together are in build/bench/results.json, and in
results-COMMIT.json beside it, for `p4reduce-lab bench-diff`. One that cannot run on this machine
says why and is left out. In what is left of the time, the shortest ones are run again, once or
more: that is how far figures vary by themselves.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import Interrupted
from p4reduce_lab.measured.difference import direction
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.processes.foreground import EndedError, raise_on_signals, run_through
from p4reduce_lab.progress import LongWork

from bench.program import CANNOT_RUN, figure_text
from bench.record import ROOT, SITE, Record, Section

OUTPUT = ROOT / "build" / "bench" / "results.json"
TIMEOUT = 600.0  # seconds; for each
ALTOGETHER = 14 * 60.0  # seconds; what has run once is repeated within that time
MOST_RUNS = 3
_KEPT = "what was measured is shown below, and kept nowhere"


@dataclass(frozen=True)
class Bench:
    """A module of this package, with its arguments."""

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    own_docs: bool = False
    """Whether it writes its table into the documentation itself, with --docs."""

    @property
    def heading(self) -> str:
        """Its heading on the page of all rows."""
        return f"{self.title}: `python -m {' '.join([f'bench.{self.module}', *self.arguments])}`"


BENCHES = (
    Bench("Embedded switch, in process", "switch.pipeline"),
    Bench("Two cores beside one, in process", "switch.cores"),
    Bench("Embedded switch, through its ports", "switch.ports"),
    Bench("A frame between two processes, CPU time", "link.cost"),
    Bench("Worker, CPU time", "worker.cpu"),
    Bench("All-reduce, embedded switch", "allreduce.allreduce"),
    Bench("All-reduce, BMv2", "allreduce.allreduce", ("--switch", "bmv2")),
    Bench("Window and all slots at once", "allreduce.window"),
    Bench("Urgent beside bulk", "allreduce.priority"),
    Bench("Narrow lanes", "allreduce.precision", own_docs=True),
    Bench("Sparse tensors where links are the limit, Mininet", "sparse.sparsity", own_docs=True),
    Bench("Sparse tensor of 100 MB, bytes at the switch's ports", "sparse.traffic", own_docs=True),
    Bench("BMv2 and embedded side by side", "bmv2.compare", ("--of", "targets")),
    Bench("Wide words against a register a lane, BMv2", "bmv2.compare", ("--of", "words")),
)


def run(bench: Bench, docs: bool = False) -> dict[str, Any]:
    """Runs one; the report has "results", or "skipped" or "failed" with the reason."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "results.json")
        command = [sys.executable, "-m", f"bench.{bench.module}", *bench.arguments]
        if docs and bench.own_docs:
            command.append("--docs")
        try:
            done = run_through([*command, "--json", str(target)], TIMEOUT, ROOT)
        except EndedError:
            return {"failed": f"not finished after {TIMEOUT:g} s"}
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        if done.returncode == CANNOT_RUN:
            return {"skipped": last}
        if done.returncode != 0:
            return {"failed": f"exit code {done.returncode}: {last}"}
        report: dict[str, Any] = json.loads(target.read_text())
        return {"results": report["results"], "seconds": time.monotonic() - began}


def run_all(benches: Sequence[Bench], reports: list[dict[str, Any]], docs: bool) -> None:
    """Runs each, and then the shortest again as long as there is time.

    `reports` gets what came out, one after the other, so that it is there if this is left early.
    """
    began = time.monotonic()
    with LongWork("benchmarks", len(benches), kept=lambda: _KEPT) as work:
        for bench in benches:
            work.now(f"{bench.title} ({bench.module})")
            reports.append(run(bench, docs))
            work.advance()
        work.now("the shortest again")
        runs = [[report["results"]] if "results" in report else [] for report in reports]
        while again := [
            (len(some), reports[number]["seconds"], number)
            for number, some in enumerate(runs)
            if 0 < len(some) < MOST_RUNS
            and reports[number]["seconds"] < ALTOGETHER - (time.monotonic() - began)
        ]:
            number = min(again)[2]
            report = run(benches[number])
            if "results" in report:
                runs[number].append(report["results"])
            else:
                reports[number]["failed"] = f"run {len(runs[number]) + 1}: {report['failed']}"
                runs[number] = []
    for report, some in zip(reports, runs, strict=True):
        if some:
            report["results"], report["runs"] = merged(some)


def merged(runs: Sequence[list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows of several runs as one, and how many runs these were.

    The rows are medians, with the least and the most of each.

    A run whose rows are not those of the first, as something could not be measured, is left out.
    """
    first, names = runs[0], [row.get("name") for row in runs[0]]
    alike = [rows for rows in runs if [row.get("name") for row in rows] == names]
    if len(alike) < 2:
        return first, 1
    result = []
    for rows in zip(*alike, strict=True):
        row = dict(rows[0])
        for name in rows[0]:
            if direction(name) is None:
                continue
            values = [one.get(name) for one in rows]
            if None not in values:  # which is what a row has no figure of
                row[name] = statistics.median(values)
                row[f"least_{name}"], row[f"most_{name}"] = min(values), max(values)
        result.append(row)
    return result, len(alike)


def show(benches: Sequence[Bench], reports: Sequence[dict[str, Any]]) -> None:
    """Prints the figures of those that were run as tables."""
    for bench, report in zip(benches, reports, strict=False):
        if "results" in report:
            print(f"\n{bench.title}\n{markdown_table(*_table(report['results']))}")
        else:
            ((what, why),) = report.items()
            print(f"\n{bench.title}: {what}: {why}")


def record(benches: Sequence[Bench], everything: dict[str, Any]) -> Record:
    """Return what the page of all rows shows: a table of each bench without one of its own."""
    sections = tuple(
        Section(SITE, bench.heading, "", *_table(report["results"]))
        for bench, report in zip(benches, everything["benches"], strict=True)
        if "results" in report and not bench.own_docs
    )
    begun = {name: one for name, one in everything.items() if name != "benches"}
    return Record("bench", "make bench", begun, sections)


def _table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and cells. Of several runs, the least and the most stand behind the median."""
    columns = dict.fromkeys(column for row in rows for column in row)
    shown = [name for name in columns if not name.startswith(("least_", "most_"))]
    head = [column.replace("_", " ") for column in shown]
    return head, [[_cell(row, column) for column in shown] for row in rows]


def _cell(row: dict[str, Any], column: str) -> str:
    text = figure_text(row.get(column))
    if f"least_{column}" in row:
        text += f" ({figure_text(row[f'least_{column}'])} to {figure_text(row[f'most_{column}'])})"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("only", nargs="*", help="modules, like allreduce.precision; default: all")
    parser.add_argument("--docs", action="store_true", help="keep a record, and show it in docs/")
    options = parser.parse_args()
    if unknown := set(options.only) - {bench.module for bench in BENCHES}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    benches = [bench for bench in BENCHES if not options.only or bench.module in options.only]
    begun = provenance()
    reports: list[dict[str, Any]] = []
    raise_on_signals()
    try:
        run_all(benches, reports, options.docs)
    except Interrupted as interruption:
        show(benches, reports)
        sys.exit(interruption.exit_code)
    print(f"\n{described(begun)}")
    show(benches, reports)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    everything = {
        **begun,
        "benches": [
            {"title": bench.title, "script": bench.module, "arguments": bench.arguments} | report
            for bench, report in zip(benches, reports, strict=True)
        ],
    }
    OUTPUT.write_text(json.dumps(everything, indent=2) + "\n")
    if begun["commit"] and not begun["commit"].endswith("+") and not options.only:
        shutil.copy(OUTPUT, OUTPUT.with_name(f"results-{begun['commit']}.json"))
    if options.docs:
        measured = record(benches, everything)
        if not options.only:
            measured.save()
        measured.show()
    print(OUTPUT)
    if any("failed" in report for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
