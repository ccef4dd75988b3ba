# SPDX-License-Identifier: Apache-2.0
"""The record of a traced collective: when what happened to it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from p4reduce.machine_code import MOST_REPEATS, MOST_STATUSES, TraceStructure


class CollectiveTrace:
    """When a collective was called, opened, answered and over; in seconds on the monotonic clock.

    What happens with each frame is written by `csrc/worker/trace.c`, into memory of this object's,
    or by the reference worker.

    Attributes:
        called: the call began.
        measured: its input was looked through, and copied where that is kept for a recovery.
        ended: it was over; 0: it is not yet.
        error: what it ended with, in words; empty: well.
        on_end: called with this when it is over; must not wait for anything. None: not called.
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
        """When the first of its stripes had a slot; 0: it never had."""
        return float(self._shared.opened)

    @property
    def repeats(self) -> list[tuple[float, int]]:
        """When timers sent frames again, and how many."""
        shared = self._shared
        return [(one.at, one.frames) for one in shared.repeats[: shared.repeat_count]]

    @property
    def repeated_frames(self) -> int:
        """How many frames timers have sent again, also those that `repeats` has no room for."""
        return int(self._shared.repeated)

    @property
    def all_there(self) -> float:
        """When the first of its stripes was open, for which all ranks have to have called it."""
        return float(self._shared.all_there)

    @property
    def last_answer(self) -> float:
        """When the latest of its rounds was complete."""
        return float(self._shared.last_answer)

    @property
    def last_made(self) -> float:
        """When the latest frame with this rank's numbers was made; 0: it had none to send."""
        return float(self._shared.last_made)

    @property
    def heard(self) -> list[tuple[float, int]]:
        """When the switch said whom it had heard, and whom, as bits; only what was news."""
        shared = self._shared
        return [(one.at, one.heard) for one in shared.statuses[: shared.status_count]]

    def open(self) -> None:
        """Stripes of it begin."""
        if not self._shared.opened:
            self._shared.opened = time.monotonic()

    def answered(self, opening: bool, now: float) -> None:
        """A round of it is complete: p4r_trace_answered."""
        if opening and not self._shared.all_there:
            self._shared.all_there = now
        self._shared.last_answer = now

    def made(self) -> None:
        """A frame with numbers of this rank was made."""
        self._shared.last_made = time.monotonic()

    def status(self, heard: int) -> None:
        """The switch has said whom it has heard: p4r_trace_status."""
        shared = self._shared
        count = shared.status_count
        if count == MOST_STATUSES or (count and shared.statuses[count - 1].heard == heard):
            return
        shared.statuses[count].at, shared.statuses[count].heard = time.monotonic(), heard
        shared.status_count = count + 1

    def repeated(self, frames: int) -> None:
        """A timer has sent frames again."""
        shared = self._shared
        shared.repeated += frames
        if (count := shared.repeat_count) < MOST_REPEATS:
            shared.repeats[count].at, shared.repeats[count].frames = time.monotonic(), frames
            shared.repeat_count = count + 1

    def end(self, now: float, error: BaseException | None) -> None:
        """It is over."""
        self.ended = now
        self.error = "" if error is None else f"{type(error).__name__}: {error}"
        if self.on_end is not None:
            self.on_end(self)
