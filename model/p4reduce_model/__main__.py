# SPDX-License-Identifier: Apache-2.0
"""Explores the cases and prints a table: `python -m p4reduce_model`."""

from __future__ import annotations

import argparse
import sys

from p4reduce_model.cases import LARGE, SMALL
from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.scenario import Scenario
from p4reduce_model.system import System
from p4reduce_model.trace import describe

_TITLES = (
    "| case | ranks | slots | jobs | calls | rounds | states | transitions | depth | runs | s | |"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="p4reduce_model", description=__doc__)
    parser.add_argument("--small", action="store_true", help="only what the tests explore")
    parser.add_argument("--case", help="only cases whose name has this in it")
    parser.add_argument("--limit", type=int, default=10_000_000, help="states of a case to stop at")
    arguments = parser.parse_args()
    cases = SMALL if arguments.small else [*SMALL, *LARGE]
    print(_TITLES)
    print("|---" * (_TITLES.count("|") - 1) + "|")
    failed = False
    for scenario in cases:
        if arguments.case and arguments.case not in scenario.name:
            continue
        system = System(scenario)
        outcome = explore(system, limit=arguments.limit)
        print(_row(scenario, outcome), flush=True)
        if outcome.violation is not None:
            failed = True
            print(describe(system, outcome.trace, outcome.violation), file=sys.stderr)
    sys.exit(failed)


def _row(scenario: Scenario, outcome: Outcome) -> str:
    result = "holds" if outcome.complete else f"stopped at {outcome.states:,} states"
    if outcome.violation is not None:
        result = f"VIOLATED: {outcome.violation.invariant}"
    calls = " then ".join("+".join(str(call.blocks) for call in life) for life in scenario.lives)
    cells = [
        scenario.name,
        scenario.ranks,
        scenario.slots,
        len(scenario.lives),
        calls,
        max(outcome.rounds),
        f"{outcome.states:,}",
        f"{outcome.transitions:,}",
        outcome.depth,
        f"{outcome.runs:,}",
        f"{outcome.seconds:.1f}",
        result,
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
