# SPDX-License-Identifier: Apache-2.0
"""The record of a traced collective: the times of its events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from p4reduce.machine_code import CONSTANTS, TraceStructure

_MOST_STATUSES = CONSTANTS["P4R_STATUSES_MOST"]
_MOST_REPEATS = CONSTANTS["P4R_REPEATS_MOST"]


class CollectiveTrace:
    """The times of a collective's events, in seconds of the monotonic clock.

    What happens with each frame is written by `csrc/worker/trace.c`, into memory of this object's,
    or by the reference worker.

    Attributes:
        called: when the call began.
        measured: its input was looked through, and copied where that is kept for a recovery.
        ended: when it was complete; 0 before.
        error: the text of the error that ended it; empty without one.
        on_end: called with this at its end; must not block. None: not called.
        address: of `struct p4r_trace`.
    """

    def __init__(self, called: float, measured: float) -> None:
        self.called, self.measured = called, measured
        self.ended = 0.0
        self.error = ""
        self.on_end: Callable[[CollectiveTrace], object] | None = None
        self._shared = TraceStructure()
        self.address = ctypes.addressof(self._shared)

    @property
    def opened(self) -> float:
        """When its first stripe got a slot; 0 if never."""
        return float(self._shared.opened)

    @property
    def repeats(self) -> list[tuple[float, int]]:
        """When timers repeated frames, and how many."""
        shared = self._shared
        return [(one.at, one.frames) for one in shared.repeats[: shared.repeat_count]]

    @property
    def repeated_frames(self) -> int:
        """How many frames timers have repeated, including those without room in `repeats`."""
        return int(self._shared.repeated)

    @property
    def all_there(self) -> float:
        """When its first stripe was open, so all ranks had called it."""
        return float(self._shared.all_there)

    @property
    def last_answer(self) -> float:
        """When its latest round was complete."""
        return float(self._shared.last_answer)

    @property
    def last_made(self) -> float:
        """When its latest frame with this rank's numbers was made; 0 if none was."""
        return float(self._shared.last_made)

    @property
    def heard(self) -> list[tuple[float, int]]:
        """When the switch reported which ranks it has heard, as bits; only changes."""
        shared = self._shared
        return [(one.at, one.heard) for one in shared.statuses[: shared.status_count]]

    def open(self) -> None:
        """Record that stripes of it start."""
        if not self._shared.opened:
            self._shared.opened = time.monotonic()

    def answered(self, opening: bool, now: float) -> None:
        """Record that a round of it is complete (p4r_trace_answered)."""
        if opening and not self._shared.all_there:
            self._shared.all_there = now
        self._shared.last_answer = now

    def made(self) -> None:
        """Record that a frame with this rank's numbers was made."""
        self._shared.last_made = time.monotonic()

    def status(self, heard: int) -> None:
        """Record which ranks the switch has heard (p4r_trace_status)."""
        shared = self._shared
        count = shared.status_count
        if count == _MOST_STATUSES or (count and shared.statuses[count - 1].heard == heard):
            return
        shared.statuses[count].at, shared.statuses[count].heard = time.monotonic(), heard
        shared.status_count = count + 1

    def repeated(self, frames: int) -> None:
        """Record that a timer has repeated frames."""
        shared = self._shared
        shared.repeated += frames
        if (count := shared.repeat_count) < _MOST_REPEATS:
            shared.repeats[count].at, shared.repeats[count].frames = time.monotonic(), frames
            shared.repeat_count = count + 1

    def end(self, now: float, error: BaseException | None) -> None:
        """Record that it is complete."""
        self.ended = now
        self.error = "" if error is None else f"{type(error).__name__}: {error}"
        if self.on_end is not None:
            self.on_end(self)
