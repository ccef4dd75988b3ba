# SPDX-License-Identifier: Apache-2.0
"""The stages of a job's life, and every transition between them, in one table.

A `Job` takes no step that is not in `TRANSITIONS`. The drawing in docs/faults.md is made from it
(`tools/draw_states.py`), and a test walks all of it.
"""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """The state of a job that ranks and operators see. The values are those of control.proto."""

    FORMING = 1
    RUNNING = 2
    FAILED = 3
    ENDED = 4


class Stage(Enum):
    """A stage of a job's life. The value says what happens in it."""

    GATHERING = "waits until all ranks are attached"
    CONFIGURING = "its entries are written to its switches"
    RUNNING = "its ranks reduce"
    STRANDED = "failed, its entries stay while ranks are left"
    CLEARING = "failed, its entries are deleted"
    CLEARED = "failed, nothing of it is on a switch"
    REFORMED = "its ranks went on in a new job"
    ENDING = "over, its entries are deleted"
    ENDED = "over, nothing of it is on a switch"


class Event(Enum):
    """An event in a job's life. The value is the label in the drawing."""

    ALL_ATTACHED = "all ranks are attached"
    CONFIGURED = "all entries are there"
    SWITCH_LOST = "a switch or link of it is lost"
    FAILED = "a rank is lost, or the switch refuses it"
    ALL_LEFT = "all ranks left"
    DESERTED = "nobody is left"
    LET_GO = "all who are left ask for a new job"
    RELEASED = "all entries are gone"
    REFORMED = "the new job is made"
    TAKEN_BACK = "the new job came to nothing"
    DELETED = "deleted, or the controller stops"


TRANSITIONS: dict[Stage, dict[Event, Stage]] = {
    Stage.GATHERING: {
        Event.ALL_ATTACHED: Stage.CONFIGURING,
        Event.FAILED: Stage.CLEARING,
        Event.DESERTED: Stage.ENDING,
        Event.DELETED: Stage.ENDING,
    },
    Stage.CONFIGURING: {
        Event.CONFIGURED: Stage.RUNNING,
        Event.SWITCH_LOST: Stage.GATHERING,
        Event.FAILED: Stage.CLEARING,
        Event.DELETED: Stage.ENDING,
    },
    Stage.RUNNING: {
        Event.ALL_LEFT: Stage.ENDING,
        Event.FAILED: Stage.STRANDED,
        Event.SWITCH_LOST: Stage.CLEARING,
        Event.DELETED: Stage.ENDING,
    },
    Stage.STRANDED: {
        Event.DESERTED: Stage.CLEARING,
        Event.LET_GO: Stage.CLEARING,
        Event.SWITCH_LOST: Stage.CLEARING,
        Event.DELETED: Stage.ENDING,
    },
    Stage.CLEARING: {Event.RELEASED: Stage.CLEARED, Event.DELETED: Stage.ENDING},
    Stage.CLEARED: {Event.REFORMED: Stage.REFORMED, Event.DELETED: Stage.ENDED},
    Stage.REFORMED: {Event.TAKEN_BACK: Stage.CLEARED},
    Stage.ENDING: {Event.RELEASED: Stage.ENDED},
}
"""From each stage, by each event. `ENDED` has none."""

TOLD: dict[Stage, JobState] = {
    Stage.GATHERING: JobState.FORMING,
    Stage.CONFIGURING: JobState.FORMING,
    Stage.RUNNING: JobState.RUNNING,
    Stage.STRANDED: JobState.FAILED,
    Stage.CLEARING: JobState.FAILED,
    Stage.CLEARED: JobState.FAILED,
    Stage.REFORMED: JobState.FAILED,
    Stage.ENDING: JobState.ENDED,
    Stage.ENDED: JobState.ENDED,
}
"""What is told of each stage."""


OVER = frozenset({Stage.CLEARING, Stage.CLEARED, Stage.REFORMED, Stage.ENDING, Stage.ENDED})
"""Entries are being deleted, or are gone."""

RELEASED = frozenset({Stage.CLEARED, Stage.REFORMED, Stage.ENDED})
"""They are gone, and slots and ids are free for other jobs."""


class NoTransitionError(Exception):
    """The table has no such transition: a bug of the controller."""


def after(stage: Stage, event: Event) -> Stage:
    """Return the next stage. Raises NoTransitionError."""
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise NoTransitionError(
            f"a job is in stage {stage.name}, which has no transition for {event.name}"
        ) from None
