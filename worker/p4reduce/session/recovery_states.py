# SPDX-License-Identifier: Apache-2.0
"""The states of a rank's recovery, and every transition between them, in one table.

`Recovery` takes no step that is not in `TRANSITIONS`. The drawing in docs/faults.md is made from it
(`tools/draw_states.py`), and the model walks all of it (`p4reduce_model.recoveries`).
"""

from __future__ import annotations

from enum import Enum

from p4reduce.errors import P4ReduceError


class State(Enum):
    """The state of a recovery. The value says what the rank does in it."""

    HALTING = "waits for its own progress thread to end"
    SEEKING = "looks for the switch that was lost"
    MOVING = "tries the fallback switches, one after the other"
    AGREEING = "agrees with the other ranks there on what is repeated"
    ON_RING = "reduces by the ring, until all ranks have a switch"
    RESUMING = "hands the switch to the session"
    RESUMED = "reduces by the switch again"
    FAILED = "has ended all calls with an error"
    UNWANTED = "ends, as the communicator is closed or broken"


class Event(Enum):
    """An event of a recovery. The value is the label in the drawing."""

    HALTED = "the thread has ended"
    FOUND = "the switch is back"
    FOUND_WITHOUT_AGREEMENT = "back, before an earlier move was agreed on"
    DUE_ELSEWHERE = "it stays away"
    NO_SEAT = "none of them has all ranks"
    SEATED = "all ranks are at one of them"
    AGREED = "all ranks agree"
    IN_VAIN = "that switch is lost too, or the ranks are elsewhere"
    DUE_ON_RING = "all have lost it"
    RING_AGREED = "all have a switch"
    RESUMED = "the session has it"
    FAILED = "a deadline, or nothing left to try"
    UNWANTED = "closed"


ENDS = frozenset({State.RESUMED, State.FAILED, State.UNWANTED})

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.HALTING: {Event.HALTED: State.SEEKING},
    State.SEEKING: {
        Event.FOUND: State.RESUMING,
        Event.FOUND_WITHOUT_AGREEMENT: State.AGREEING,
        Event.DUE_ELSEWHERE: State.MOVING,
        Event.DUE_ON_RING: State.ON_RING,
    },
    State.MOVING: {Event.NO_SEAT: State.SEEKING, Event.SEATED: State.AGREEING},
    State.AGREEING: {Event.AGREED: State.RESUMING, Event.IN_VAIN: State.SEEKING},
    State.ON_RING: {Event.RING_AGREED: State.RESUMING},
    State.RESUMING: {Event.RESUMED: State.RESUMED, Event.IN_VAIN: State.SEEKING},
}
"""From each state that is no end, by each event. `FAILED` ends all of these, and `UNWANTED` all but
the ring, which fails then."""

for _state, _moves in TRANSITIONS.items():
    _moves[Event.FAILED] = State.FAILED
    if _state is not State.ON_RING:
        _moves[Event.UNWANTED] = State.UNWANTED


def after(state: State, event: Event) -> State:
    """Return the next state.

    Raises:
        P4ReduceError: the table has no such transition: a bug.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise P4ReduceError(
            f"recovering is in state {state.name}, which has no transition for {event.name}"
        ) from None
