# SPDX-License-Identifier: Apache-2.0
"""The reference worker below a communicator, in place of `protocol.slots.SlotMachine`."""

from __future__ import annotations

from p4reduce.reference.iteration import ReferenceIteration
from p4reduce.reference.worker import Worker
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.transport.base import Transport


class ReferenceMachine(Worker):
    """A reference worker with the other methods of `SlotMachine` that the session calls."""

    @property
    def timeout_seconds(self) -> float:
        return self.timeout.seconds

    @property
    def window_size(self) -> int:
        return len(self.slots)

    def go_on_counting(self, before: Counts, round_trips: RoundTrips) -> None:
        self.counts = before
        self.round_trips.go_on_from(round_trips)

    def take_events(self, now: float) -> None:
        """Do nothing: calls end when their last frame is received."""

    def iteration(self, transport: Transport, _lock: object = None) -> ReferenceIteration:
        return ReferenceIteration(self, transport)
