# SPDX-License-Identifier: Apache-2.0
"""Explores the cases and prints a table: `python -m p4reduce_model`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import Protocol

from p4reduce_model.cases import LARGE, SMALL
from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.faults import FAULTS as ON_ONE_SWITCH
from p4reduce_model.job_lives import JOBS_LARGE, JOBS_SMALL, JobCase, explore_jobs
from p4reduce_model.late import (
    LATE_FAULTS,
    LATE_LARGE,
    LATE_SMALL,
    LateCase,
    describe_late,
    explore_late,
)
from p4reduce_model.recoveries import (
    RECOVERIES_LARGE,
    RECOVERIES_SMALL,
    RECOVERY_FAULTS,
    RecoveryCase,
    explore_recoveries,
)
from p4reduce_model.scenario import Scenario
from p4reduce_model.system import System
from p4reduce_model.trace import describe
from p4reduce_model.tree_faults import TREE_FAULTS
from p4reduce_model.violation import Violation

MOST_JOB_STATES = 20_000
_MOST_NAMED = 3  # transitions

FAULTS = [*ON_ONE_SWITCH, *TREE_FAULTS]

_CASE_TITLES = (
    "| case | ranks | slots | jobs | calls | rounds | states | transitions | depth | runs | s | |"
)
_LATE_TITLES = "| case | ranks | sums | losses | states | transitions | depth | s | |"
_LIVES_TITLES = "| case | states | events | depth | s | | transitions not taken |"
_FAULT_TITLES = "| fault | broken invariant | steps | states | s |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="p4reduce_model", description=__doc__)
    parser.add_argument("--small", action="store_true", help="only what the tests explore")
    parser.add_argument("--case", help="only cases whose name has this in it")
    parser.add_argument("--fault", help="show how the fault of this name is found")
    parser.add_argument("--limit", type=int, default=10_000_000, help="states of a case to stop at")
    arguments = parser.parse_args()
    if arguments.fault is not None:
        _show_fault(arguments.fault)
        return
    cases = SMALL if arguments.small else [*SMALL, *LARGE]
    if arguments.case is not None:
        cases = [case for case in cases if arguments.case in case.name]
    holds = _explore_all(cases, arguments.limit)
    late = LATE_SMALL if arguments.small else [*LATE_SMALL, *LATE_LARGE]
    late = [case for case in late if arguments.case is None or arguments.case in case.name]
    if late:
        print()
        holds &= _explore_late(late, arguments.limit)
    tables: list[JobCase | RecoveryCase] = [*JOBS_SMALL, *RECOVERIES_SMALL]
    if not arguments.small:
        tables += [*JOBS_LARGE, *RECOVERIES_LARGE]
    tables = [case for case in tables if arguments.case is None or arguments.case in case.name]
    if tables:
        print()
        holds &= _explore_tables(tables, arguments.limit)
    if arguments.case is None:
        print()
        holds &= _hunt_all()
    sys.exit(not holds)


def _explore_all(cases: list[Scenario], limit: int) -> bool:
    """Print a row for each case, and counterexamples to stderr; return whether all hold."""
    _print_titles(_CASE_TITLES)
    holds = True
    for scenario in cases:
        system = System(scenario)
        outcome = explore(system, limit=limit)
        _print_cells(_cells(scenario, outcome))
        if outcome.violation is not None:
            holds = False
            print(describe(system, outcome), file=sys.stderr)
    return holds


def _explore_late(cases: list[LateCase], limit: int) -> bool:
    """Print a row for each case of late ranks; return whether all hold."""
    _print_titles(_LATE_TITLES)
    holds = True
    for case in cases:
        outcome = explore_late(case, limit)
        if outcome.violation is not None:
            print(describe_late(outcome), file=sys.stderr)
        holds &= outcome.violation is None
        cells = [case.name, case.ranks, case.sums, case.deaths, f"{outcome.states:,}"]
        cells += [f"{outcome.transitions:,}", outcome.depth, f"{outcome.seconds:.1f}"]
        _print_cells([*cells, _verdict(outcome)])
    return holds


def _explore_tables(cases: Sequence[JobCase | RecoveryCase], limit: int) -> bool:
    """Print a row for each case of jobs and recoveries; return whether all hold."""
    _print_titles(_LIVES_TITLES)
    holds = True
    for case in cases:
        if isinstance(case, JobCase):
            lives = explore_jobs(case, min(limit, MOST_JOB_STATES))
        else:
            lives = explore_recoveries(case, limit)
        if lives.violation is not None:
            print("\n".join([*lives.trace, str(lives.violation)]), file=sys.stderr)
        holds &= lives.violation is None
        missing = sorted(f"{a.name} {event.name}" for a, event, _ in lives.missing)
        cells = [case.name, f"{lives.states:,}", f"{lives.steps:,}", lives.depth]
        cells += [f"{lives.seconds:.1f}", _verdict(lives)]
        named = ", ".join(missing) or "none"
        _print_cells([*cells, named if len(missing) <= _MOST_NAMED else len(missing)])
    return holds


def _hunt_all() -> bool:
    """Print a row for each planted fault; return whether all are found."""
    _print_titles(_FAULT_TITLES)
    found = True
    for fault in FAULTS:
        if fault.edits and shutil.which("p4c-bm2-ss") is None:
            print(f"| {fault.name} | not planted: p4c-bm2-ss is not on PATH | | | |")
            continue
        _, outcome = fault.hunt(fault.program())
        violation = outcome.violation
        found &= violation is not None
        cells = [
            fault.name,
            "NOT FOUND" if violation is None else violation.invariant,
            len(outcome.trace),
            f"{outcome.states:,}",
            f"{outcome.seconds:.1f}",
        ]
        _print_cells(cells)
    for case in LATE_FAULTS:
        late = explore_late(case)
        found &= late.violation is not None
        cells = [case.name, "NOT FOUND" if late.violation is None else late.violation.invariant]
        cells += [len(late.trace), f"{late.states:,}", f"{late.seconds:.1f}"]
        _print_cells(cells)
    for mistake in RECOVERY_FAULTS:
        lives = mistake.hunt()
        found &= lives.violation is not None
        cells = [
            mistake.name,
            "NOT FOUND" if lives.violation is None else lives.violation.invariant,
        ]
        cells += [len(lives.trace), f"{lives.states:,}", f"{lives.seconds:.1f}"]
        _print_cells(cells)
    return found


def _show_fault(name: str) -> None:
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    if fault is None:
        names = "\n".join(f"  {fault.name}" for fault in FAULTS)
        sys.exit(f"there is no fault {name!r}, but:\n{names}")
    print(f"{fault.name}: {fault.text}")
    print(describe(*fault.hunt(fault.program())))


def _print_titles(titles: str) -> None:
    print(titles)
    print("|---" * (titles.count("|") - 1) + "|")


def _print_cells(cells: Sequence[object]) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


class _Explored(Protocol):
    """What all explorations end with."""

    complete: bool
    states: int
    violation: Violation | None


def _verdict(explored: _Explored) -> str:
    if explored.violation is not None:
        return f"VIOLATED: {explored.violation.invariant}"
    return "holds" if explored.complete else f"stopped at {explored.states:,} states"


def _cells(scenario: Scenario, outcome: Outcome) -> list[object]:
    calls = " then ".join("+".join(str(call.blocks) for call in life) for life in scenario.lives)
    return [
        scenario.name,
        scenario.ranks,
        scenario.slots,
        scenario.jobs,
        calls,
        outcome.rounds,
        f"{outcome.states:,}",
        f"{outcome.transitions:,}",
        outcome.depth,
        f"{outcome.runs:,}",
        f"{outcome.seconds:.1f}",
        _verdict(outcome),
    ]


if __name__ == "__main__":
    main()
