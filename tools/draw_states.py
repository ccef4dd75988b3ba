# SPDX-License-Identifier: Apache-2.0
"""Draw the state tables of the code as diagrams, for docs/faults.md on the site.

A comment ``<!-- states: NAME -->`` on the page says where a drawing stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from p4reduce.session import recovery
from p4reduce_controller.jobs import job_states

Table = Mapping[Any, Mapping[Any, Any]]  # states, events, states


def mermaid(table: Table, start: Enum, everywhere: frozenset[Enum]) -> str:
    """Return a state diagram, without some events.

    Args:
        table: from each state, by each event.
        start: the first state.
        everywhere: the events to leave out, which the page describes.

    Raises:
        ValueError: a text has a colon, at which mermaid's parser ends.
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
    texts = [state.value for state in states]
    texts += [event.value for moves in table.values() for event in moves]
    if wrong := [text for text in texts if ":" in text]:
        raise ValueError(f"mermaid draws no text with a colon: {wrong}")
    return "\n".join([*lines, "```"])


def drawings() -> dict[str, str]:
    """Return each drawing, by name."""
    events, job_events = recovery.RecoveryEvent, job_states.JobEvent
    return {
        "job": mermaid(
            job_states.TRANSITIONS, job_states.Stage.GATHERING, frozenset({job_events.DELETED})
        ),
        "recovery": mermaid(
            recovery.TRANSITIONS,
            recovery.RecoveryState.HALTING,
            frozenset({events.FAILED, events.UNWANTED}),
        ),
    }


def drawn(text: str) -> str:
    """Return a page with a drawing in the place of each comment that names one."""
    for name, drawing in drawings().items():
        text = text.replace(f"<!-- states: {name} -->", drawing)
    return text
