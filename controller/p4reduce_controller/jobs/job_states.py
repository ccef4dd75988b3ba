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


class JobEvent(Enum):
    """An event in a job's life. The value is the label in the drawing."""

    ALL_ATTACHED = "all ranks are attached"
    CONFIGURED = "all entries are there"
    SWITCH_LOST = "a switch or link of it is lost"
    FAILED = "a rank is lost, or the switch refuses it"
    ALL_LEFT = "all ranks left"
    DESERTED = "nobody is left"
    FORGOTTEN = "all who are left ask for a new job"
    RELEASED = "all entries are gone"
    REFORMED = "the new job is made"
    TAKEN_BACK = "the new job came to nothing"
    DELETED = "deleted, or the controller stops"


TRANSITIONS: dict[Stage, dict[JobEvent, Stage]] = {
    Stage.GATHERING: {
        JobEvent.ALL_ATTACHED: Stage.CONFIGURING,
        JobEvent.FAILED: Stage.CLEARING,
        JobEvent.DESERTED: Stage.ENDING,
        JobEvent.DELETED: Stage.ENDING,
    },
    Stage.CONFIGURING: {
        JobEvent.CONFIGURED: Stage.RUNNING,
        JobEvent.SWITCH_LOST: Stage.GATHERING,
        JobEvent.FAILED: Stage.CLEARING,
        JobEvent.DELETED: Stage.ENDING,
    },
    Stage.RUNNING: {
        JobEvent.ALL_LEFT: Stage.ENDING,
        JobEvent.FAILED: Stage.STRANDED,
        JobEvent.SWITCH_LOST: Stage.CLEARING,
        JobEvent.DELETED: Stage.ENDING,
    },
    Stage.STRANDED: {
        JobEvent.DESERTED: Stage.CLEARING,
        JobEvent.FORGOTTEN: Stage.CLEARING,
        JobEvent.SWITCH_LOST: Stage.CLEARING,
        JobEvent.DELETED: Stage.ENDING,
    },
    Stage.CLEARING: {JobEvent.RELEASED: Stage.CLEARED, JobEvent.DELETED: Stage.ENDING},
    Stage.CLEARED: {JobEvent.REFORMED: Stage.REFORMED, JobEvent.DELETED: Stage.ENDED},
    Stage.REFORMED: {JobEvent.TAKEN_BACK: Stage.CLEARED},
    Stage.ENDING: {JobEvent.RELEASED: Stage.ENDED},
}
"""From each stage, by each event. `ENDED` has none."""

PUBLIC_STATES: dict[Stage, JobState] = {
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


def after(stage: Stage, event: JobEvent) -> Stage:
    """Return the next stage. Raises NoTransitionError."""
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise NoTransitionError(
            f"a job is in stage {stage.name}, which has no transition for {event.name}"
        ) from None
