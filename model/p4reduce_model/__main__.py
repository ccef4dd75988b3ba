# SPDX-License-Identifier: Apache-2.0
"""Explores the cases and prints a table: `python -m p4reduce_model`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from p4reduce_model.cases import LARGE, SMALL
from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.faults import FAULTS as ON_ONE_SWITCH
from p4reduce_model.faults import Fault
from p4reduce_model.found import Found, Walked
from p4reduce_model.job_lives import JOBS_LARGE, JOBS_SMALL
from p4reduce_model.late import LATE_FAULTS, LATE_LARGE, LATE_SMALL
from p4reduce_model.recoveries import (
    RECOVERIES_LARGE,
    RECOVERIES_SMALL,
    RECOVERY_FAULTS,
)
from p4reduce_model.scenario import Scenario
from p4reduce_model.system import System
from p4reduce_model.trace import describe
from p4reduce_model.tree_faults import TREE_FAULTS

_MOST_NAMED = 3  # transitions

FAULTS = [*ON_ONE_SWITCH, *TREE_FAULTS]
_OTHER_FAULTS: dict[str, Callable[[], Found[Any]]] = {
    **{case.name: case.explore for case in LATE_FAULTS},
    **{fault.name: fault.hunt for fault in RECOVERY_FAULTS},
}

_CASE_TITLES = (
    "| case | ranks | slots | jobs | calls | rounds | states | transitions | depth | runs | s | |"
)
_STEPS_TITLES = "| case | states | events | depth | s | | transitions not taken |"
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
    scenarios: list[Scenario] = [*SMALL]
    step_cases: list[_StepCase] = [*LATE_SMALL, *JOBS_SMALL, *RECOVERIES_SMALL]
    if not arguments.small:
        scenarios += LARGE
        step_cases += [*LATE_LARGE, *JOBS_LARGE, *RECOVERIES_LARGE]
    if (part := arguments.case) is not None:
        names = [*(case.name for case in scenarios), *(case.name for case in step_cases)]
        scenarios = [scenario for scenario in scenarios if part in scenario.name]
        step_cases = [case for case in step_cases if part in case.name]
        if not scenarios and not step_cases:
            sys.exit(f"there is no case with {part!r} in its name, but:\n{_listed(names)}")
    holds = _explore_scenarios(scenarios, arguments.limit)
    holds &= _explore_step_cases(step_cases, arguments.limit)
    if part is None:
        holds &= _hunt_all()
    sys.exit(not holds)


# -- Cases -----------------------------------------------------------------------------------------


def _explore_scenarios(scenarios: Sequence[Scenario], limit: int) -> bool:
    """Print a row for each, and counterexamples to stderr; return whether all hold."""
    holds = True
    if scenarios:
        _print_titles(_CASE_TITLES)
    for case in scenarios:
        system = System(case)
        outcome = explore(system, limit=limit)
        calls = " then ".join("+".join(str(call.blocks) for call in life) for life in case.lives)
        _print_cells(
            case.name,
            case.ranks,
            case.slots,
            case.jobs,
            calls,
            outcome.rounds,
            f"{outcome.states:,}",
            f"{outcome.transitions:,}",
            outcome.depth,
            f"{outcome.runs:,}",
            f"{outcome.seconds:.1f}",
            _verdict(outcome),
        )
        holds &= outcome.complete
        if outcome.violation is not None:
            print(describe(system, outcome), file=sys.stderr)
    return holds


class _StepCase(Protocol):
    """A case that is explored by doing its steps again."""

    @property
    def name(self) -> str: ...

    def explore(self, limit: int) -> Found[Any]: ...


def _explore_step_cases(cases: Sequence[_StepCase], limit: int) -> bool:
    """Do the same for late ranks, the controller's jobs and recoveries."""
    holds = True
    if cases:
        _print_titles(_STEPS_TITLES)
    for case in cases:
        found = case.explore(limit)
        _print_cells(
            case.name,
            f"{found.states:,}",
            f"{found.transitions:,}",
            found.depth,
            f"{found.seconds:.1f}",
            _verdict(found, stops=case in JOBS_LARGE),
            _not_taken(found) if isinstance(found, Walked) else "",
        )
        holds &= found.complete or (case in JOBS_LARGE and found.violation is None)
        if found.violation is not None:
            print(found.describe(), file=sys.stderr)
    return holds


def _not_taken(found: Walked) -> object:
    missing = sorted(f"{a.name} {event.name}" for a, event, _ in found.missing)
    return len(missing) if len(missing) > _MOST_NAMED else ", ".join(missing) or "none"


def _verdict(found: Found[Any], *, stops: bool = False) -> str:
    """Return a word or two; `stops`: to explore all of the case is not intended."""
    if found.violation is not None:
        return f"VIOLATED: {found.violation.invariant}"
    if found.complete:
        return "holds"
    return f"{'stopped' if stops else 'NOT DONE: stopped'} at {found.states:,} states"


# -- Faults ----------------------------------------------------------------------------------------


def _hunt_all() -> bool:
    """Print a row for each planted fault; return whether all are found."""
    _print_titles(_FAULT_TITLES)
    hunts: list[tuple[str, Callable[[], Found[Any]]]] = []
    for fault in FAULTS:
        if fault.edits and shutil.which("p4c-bm2-ss") is None:
            _print_cells(fault.name, "not planted: p4c-bm2-ss is not on PATH", "", "", "")
        else:
            hunts.append((fault.name, partial(_hunt, fault)))
    hunts += _OTHER_FAULTS.items()
    all_found = True
    for name, hunt in hunts:
        found = hunt()
        broken = "NOT FOUND" if found.violation is None else found.violation.invariant
        all_found &= found.violation is not None
        _print_cells(name, broken, len(found.trace), f"{found.states:,}", f"{found.seconds:.1f}")
    return all_found


def _hunt(fault: Fault) -> Outcome:
    return fault.hunt(fault.program())[1]


def _show_fault(name: str) -> None:
    if name in _OTHER_FAULTS:
        print(f"{name}\n{_OTHER_FAULTS[name]().describe()}")
        return
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    if fault is None:
        names = [*(fault.name for fault in FAULTS), *_OTHER_FAULTS]
        sys.exit(f"there is no fault {name!r}, but:\n{_listed(names)}")
    print(f"{fault.name}: {fault.text}")
    print(describe(*fault.hunt(fault.program())))


def _listed(names: Sequence[str]) -> str:
    return "\n".join(f"  {name}" for name in names)


# -- Tables ----------------------------------------------------------------------------------------


def _print_titles(titles: str) -> None:
    print(f"\n{titles}")
    print("|---" * (titles.count("|") - 1) + "|")


def _print_cells(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
