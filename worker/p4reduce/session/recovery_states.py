# SPDX-License-Identifier: Apache-2.0
"""The states of a rank's recovery, and every transition between them, in one table.

`RecoveryProtocol` takes no step that is not in `TRANSITIONS`. The drawing in docs/faults.md is made
from it (`tools/draw_states.py`), and the model walks all of it (`p4reduce_model.recoveries`).
"""

from __future__ import annotations

from enum import Enum

from p4reduce.errors import P4ReduceError


class RecoveryState(Enum):
    """The state of a recovery. The value says what the rank does in it."""

    HALTING = "waits for its own progress thread to end"
    SEEKING = "looks for the switch that was lost"
    AGREEING = "agrees with the other ranks on where they continue"
    ON_RING = "reduces by the ring, until all ranks have a switch"
    RESUMING = "hands the switch to the session"
    SETTLING = "agrees with the ranks that remain on what is over"
    RESUMED = "reduces by the switch again"
    FAILED = "has ended all calls with an error"
    UNWANTED = "ends, as the communicator is closed or broken"


class RecoveryEvent(Enum):
    """An event of a recovery. The value is the label in the drawing."""

    HALTED = "the thread has ended"
    FOUND = "the switch was there all along"
    FOUND_AGAIN = "all ranks are on a switch again"
    AGREED = "all ranks agree"
    FAILED_THERE = "that switch is lost too"
    DUE_ON_RING = "all have lost it"
    RING_AGREED = "all have a switch"
    RESUMED = "the session has it"
    RANK_LOST = "a rank is lost"
    FAILED = "a deadline, or nothing left to try"
    UNWANTED = "closed"


ENDS = frozenset({RecoveryState.RESUMED, RecoveryState.FAILED, RecoveryState.UNWANTED})

TRANSITIONS: dict[RecoveryState, dict[RecoveryEvent, RecoveryState]] = {
    RecoveryState.HALTING: {RecoveryEvent.HALTED: RecoveryState.SEEKING},
    RecoveryState.SEEKING: {
        RecoveryEvent.FOUND: RecoveryState.RESUMING,
        RecoveryEvent.FOUND_AGAIN: RecoveryState.AGREEING,
        RecoveryEvent.DUE_ON_RING: RecoveryState.ON_RING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.AGREEING: {
        RecoveryEvent.AGREED: RecoveryState.RESUMING,
        RecoveryEvent.FAILED_THERE: RecoveryState.SEEKING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.ON_RING: {
        RecoveryEvent.RING_AGREED: RecoveryState.AGREEING,
        RecoveryEvent.RANK_LOST: RecoveryState.SETTLING,
    },
    RecoveryState.RESUMING: {
        RecoveryEvent.RESUMED: RecoveryState.RESUMED,
        RecoveryEvent.FAILED_THERE: RecoveryState.SEEKING,
    },
    RecoveryState.SETTLING: {},
}
"""From each state that is no end, by each event. `FAILED` and `UNWANTED` end all of these but
RESUMING, which takes no time."""

for _state, _moves in TRANSITIONS.items():
    if _state is not RecoveryState.RESUMING:
        _moves[RecoveryEvent.FAILED] = RecoveryState.FAILED
        _moves[RecoveryEvent.UNWANTED] = RecoveryState.UNWANTED


def after(state: RecoveryState, event: RecoveryEvent) -> RecoveryState:
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
