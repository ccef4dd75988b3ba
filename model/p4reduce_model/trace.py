# SPDX-License-Identifier: Apache-2.0
"""A counterexample as people read it: who does what to whom, frame by frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4reduce_model.frames import numbers
from p4reduce_model.system import Event, State, System
from p4reduce_model.violation import Violation

_WIDTH = 10  # of the column that says who


def describe(system: System, events: Iterable[Event], violation: Violation | None) -> str:
    """Return a run as text, one numbered step for each event, and what is wrong at its end.

    Each distinct frame has a number, #n; what is sent by one step is delivered by a later one, or
    never. A frame that is delivered more than once is a duplicate.
    """
    lines = [f"scenario {system.scenario.name}"]
    state, delivered = system.first, set[tuple[int, int]]()
    for step, event in enumerate(events, start=1):
        try:
            after = system.after(state, event)
        except Violation:
            after = None
        first, *rest = _step(system, state, event, after, delivered)
        lines.append(f"{step:4}  {first}")
        lines += [f"      {line}" for line in rest]
        if after is None:
            break
        state = after
    if violation is not None:
        lines.append(f"WRONG {violation}")
    return "\n".join(lines)


def _step(
    system: System,
    state: State,
    event: Event,
    after: State | None,
    delivered: set[tuple[int, int]],
) -> Iterator[str]:
    worker = system.workers[event.whom]
    if event.what == "control":
        yield f"{'controller':{_WIDTH}}  {system.switch.steps[state[0]].text}"
        return
    if event.what == "submit":
        call = worker.view(system.machine(state, event.whom)).submitted
        yield f"{worker.name:{_WIDTH}}  makes call {call}"
    elif event.what == "timer":
        yield f"{worker.name:{_WIDTH}}  its timer of slot {event.which} runs out"
    elif event.what == "send":
        yield f"{worker.name:{_WIDTH}}  its transport takes a frame"
    else:
        frame = system.frames[event.which]
        name = "switch" if frame.up else worker.name
        again = " again" if (event.whom, frame.number) in delivered else ""
        delivered.add((event.whom, frame.number))
        yield f"{name:{_WIDTH}}  gets #{frame.number}{again}  {frame}"
    if after is None:
        return
    if event.what == "switch":
        cells = system.cells(state, frame.header.slot)
        outcome = system.switch.take(state[0], cells, frame.number).outcome
        yield f"{'':{_WIDTH}}    {outcome.name}"
    for number in numbers(system.sent(state, event)):
        frame = system.frames[number]
        whom = "the switch" if frame.up else f"port {frame.port}"
        yield f"{'':{_WIDTH}}    sends #{number} to {whom}  {frame}"
    if event.what in ("receive", "submit", "timer"):
        view = worker.view(system.machine(after, event.whom))
        yield f"{'':{_WIDTH}}    {view.text}"
