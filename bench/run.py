# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark of this package and prints one table: `make bench`.

Each writes its figures as JSON; all of them together are in build/bench/results.json. One that
cannot run on this machine says why and is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import describe, machine

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "bench" / "results.json"
CANNOT_RUN = 77
WIDTH = 150
TIMEOUT = 600.0  # seconds; for each


@dataclass(frozen=True)
class Bench:
    """A module of this package, with its arguments."""

    title: str
    module: str
    arguments: tuple[str, ...] = ()


BENCHES = (
    Bench("Embedded switch, in process", "switch.pipeline"),
    Bench("Embedded switch, through its ports", "switch.ports"),
    Bench("A frame between two processes, CPU time", "link.cost"),
    Bench("Worker, CPU time", "worker.cpu"),
    Bench("All-reduce, embedded switch", "allreduce.allreduce"),
    Bench("All-reduce, BMv2", "allreduce.allreduce", ("--switch", "bmv2")),
    Bench("Window and all slots at once", "allreduce.window"),
    Bench("Urgent beside bulk", "allreduce.priority"),
    Bench("Narrow lanes", "allreduce.precision"),
    Bench("Sparse tensors where links are the limit, Mininet", "sparse.sparsity"),
    Bench("Sparse tensor of 100 MB, bytes at the switch's ports", "sparse.traffic"),
    Bench("BMv2 and embedded side by side", "bmv2.targets"),
    Bench("Wide words against a register a lane, BMv2", "bmv2.wide_words"),
)


def run(bench: Bench, console: Console) -> dict[str, Any]:
    """Runs one; the report has "results", or "skipped" or "failed" with the reason."""
    console.print(f"{bench.title} ({bench.module}) ...", style="dim")
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "results.json")
        command = [sys.executable, "-m", f"bench.{bench.module}", *bench.arguments]
        try:
            done = subprocess.run(
                [*command, "--json", str(target)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
                cwd=ROOT,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not through after {TIMEOUT:g} s"}
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        if done.returncode == CANNOT_RUN:
            return {"skipped": last}
        if done.returncode != 0:
            return {"failed": f"exit code {done.returncode}: {last}"}
        report: dict[str, Any] = json.loads(target.read_text())
        return report


def show(bench: Bench, report: dict[str, Any], console: Console) -> None:
    """Prints a bench's figures as a table, a column each."""
    console.print()
    if "results" not in report:
        ((what, why),) = report.items()
        console.print(f"{bench.title}: {what}: {why}", markup=False)
        return
    table = Table(title=bench.title, title_justify="left", title_style="bold", box=None)
    rows = report["results"]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        table.add_column(
            column.replace("_", " "),
            justify="left" if column == "name" else "right",
            no_wrap=column == "name",
        )
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "only", nargs="*", help="modules to run, like allreduce.precision; default: all"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - {bench.module for bench in BENCHES}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    benches = [bench for bench in BENCHES if not options.only or bench.module in options.only]
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)  # rather long lines than figures cut short
    host = machine()
    reports = [(bench, run(bench, console)) for bench in benches]
    console.print(f"\n{describe(host)}")
    for bench, report in reports:
        show(bench, report, console)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    everything = {
        "machine": host,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "benches": [
            {
                "title": bench.title,
                "script": bench.module,
                "arguments": bench.arguments,
                **{key: value for key, value in report.items() if key != "machine"},
            }
            for bench, report in reports
        ],
    }
    OUTPUT.write_text(json.dumps(everything, indent=2) + "\n")
    console.print(f"\n{OUTPUT}")
    if any("failed" in report for _, report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
