# SPDX-License-Identifier: Apache-2.0
"""Draw the state tables into the pages that show them; `--check`: say which drawing is stale.

A drawing stands between two comments, ``<!-- states: NAME -->`` and ``<!-- end of states -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from p4reduce.session import recovery_states
from p4reduce_controller.jobs import job_states

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"

Table = Mapping[Any, Mapping[Any, Any]]  # states, events, states


def mermaid(table: Table, start: Enum, everywhere: frozenset[Enum]) -> str:
    """Return a state diagram, without some events.

    Args:
        table: from each state, by each event.
        start: the first state.
        everywhere: these events, which the page tells in words.
    """
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    states = dict.fromkeys([*table, *(to for moves in table.values() for to in moves.values())])
    lines += [f"    {state.name} : {state.name}<br/>{state.value}" for state in states]
    lines += [
        f"    {state.name} --> {to.name} : {event.value}"
        for state, moves in table.items()
        for event, to in moves.items()
        if event not in everywhere
    ]
    return "\n".join([*lines, "```"])


def drawings() -> dict[str, str]:
    """Return each drawing, by name."""
    events, job_events = recovery_states.Event, job_states.Event
    return {
        "job": mermaid(
            job_states.TRANSITIONS, job_states.Stage.GATHERING, frozenset({job_events.DELETED})
        ),
        "recovery": mermaid(
            recovery_states.TRANSITIONS,
            recovery_states.State.HALTING,
            frozenset({events.FAILED, events.UNWANTED}),
        ),
    }


def drawn(text: str) -> str:
    """Return a page with its drawings as they should be."""
    for name, drawing in drawings().items():
        pattern = rf"(<!-- states: {name} -->\n).*?(\n<!-- end of states -->)"
        text, count = re.subn(pattern, rf"\g<1>{drawing}\g<2>", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the states of {name!r}, not 1")
    return text


def main() -> int:
    """Draw, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if it is stale")
    options = parser.parse_args()
    text = PAGE.read_text()
    new = drawn(text)
    if new == text:
        return 0
    if options.check:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python tools/draw_states.py")
        return 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
