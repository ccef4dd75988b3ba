# SPDX-License-Identifier: Apache-2.0
"""A counterexample as people read it: who does what to whom, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from p4reduce_model.explorer import Outcome
from p4reduce_model.found import Violation
from p4reduce_model.frames import numbers
from p4reduce_model.system import Event, State, System

_WIDTH = 10  # of the column that says who
_SAID = {
    "timer": "its timer of slot {} runs out",
    "window": "makes its window {}",
    "halt": "notices that the switch is lost",
    "resume": "goes on in the job's next life, by agreement {}",
    "send": "its transport takes a frame",
}


def describe(system: System, outcome: Outcome) -> str:
    """Return a run as text, one numbered step for each event, and what is wrong at its end.

    Frames are numbered, #n, in the order in which they are sent. What one step sends is delivered
    by a later one, or never; a frame that is delivered again is a duplicate.
    """
    lines = [f"scenario: {system.scenario.name}"]
    delivered: set[tuple[int, int]] = set()
    known: dict[int, int] = {}

    def labels(number: int) -> int:
        return known.setdefault(number, len(known))

    state: State | None = system.first
    for step, event in enumerate((*outcome.trace, *outcome.run), start=1):
        if state is None:
            break
        if step == len(outcome.trace) + 1:
            lines.append("      From here on no frame is lost, but all that are in flight.")
        try:
            after = system.after(state, event)
        except Violation:
            after = None
        first, *rest = _step(system, state, event, after, delivered, labels)
        lines.append(f"{step:4}  {first}")
        lines += [f"      {line}" for line in rest]
        state = after
    if outcome.violation is not None:
        lines.append(f"WRONG {outcome.violation}")
    return "\n".join(lines)


def _step(
    system: System,
    state: State,
    event: Event,
    after: State | None,
    delivered: set[tuple[int, int]],
    labels: Callable[[int], int],
) -> Iterator[str]:
    switches = system.switches
    if event.what == "control":
        yield f"{'controller':{_WIDTH}}  {system.steps[state[0]].text}"
        return
    # There may be more switches than ranks.
    worker = system.workers[0 if event.what == "switch" else event.whom]
    if event.what == "submit":
        call = worker.view(system.machine(state, event.whom)).submitted
        yield f"{worker.name:{_WIDTH}}  makes call {call}"
    elif event.what in _SAID:
        yield f"{worker.name:{_WIDTH}}  {_SAID[event.what].format(*event.about)}"
    else:
        frame, *second = (system.frames[number] for number in event.about)
        name = switches[frame.switch].name if frame.inward else worker.name
        again = " again" if (event.whom, frame.number) in delivered else ""
        delivered.add((event.whom, frame.number))
        yield f"{name:{_WIDTH}}  gets #{labels(frame.number)}{again}  {frame}"
        for other in second:
            yield f"{'':{_WIDTH}}  and, in the same batch, #{labels(other.number)}  {other}"
    if after is None:
        return
    if event.what == "switch":
        cells = system.cells(state, event.whom, frame.header.slot)
        outcome = switches[event.whom].take(state[0], cells, frame.number).outcome
        yield f"{'':{_WIDTH}}    {outcome.name}"
    for number in numbers(system.sent(state, event)):
        frame = system.frames[number]
        whom = f"the {switches[frame.switch].name}" if frame.inward else f"port {frame.port}"
        yield f"{'':{_WIDTH}}    sends #{labels(number)} to {whom}  {frame}"
    if event.what not in ("switch", "send"):
        text = worker.view(system.machine(after, event.whom)).text
        if text != worker.view(system.machine(state, event.whom)).text:
            yield f"{'':{_WIDTH}}    {text}"
