# SPDX-License-Identifier: Apache-2.0
"""The reference worker below a communicator, where `protocol.slots.SlotMachine` is otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from p4reduce.errors import P4ReduceError
from p4reduce.reference.frames import describe
from p4reduce.reference.worker import Worker
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Level

log = logging.getLogger("p4reduce.reference")


class ReferenceMachine:
    """Batches of frames, taken one by one; see `session.machine.Machine`.

    Attributes:
        worker: the specification.
        outgoing: the frames to send, a row a slot.
        key: the job times 65,536 plus the rank, which all answers to it carry.

    Args:
        slots: of `Worker`.
        job: as `slots`.
        rank: as `slots`.
        world_size: as `slots`.
        here: as `slots`.
        switch: as `slots`.
        urgent: as `slots`.
        levels: as `slots`.
    """

    def __init__(
        self,
        *,
        slots: int,
        job: int,
        rank: int,
        world_size: int,
        here: Endpoint,
        switch: Endpoint,
        urgent: int = 0,
        levels: Sequence[Level] | None = None,
    ) -> None:
        self.worker = Worker(
            slots=slots,
            job=job,
            rank=rank,
            world_size=world_size,
            here=here,
            switch=switch,
            urgent=urgent,
            levels=levels,
        )
        self.outgoing = FrameBuffer(slots)
        self.key = job << 16 | rank

    @property
    def disputed(self) -> Callable[[Dispute], object] | None:
        return self.worker.disputed

    @disputed.setter
    def disputed(self, call: Callable[[Dispute], object] | None) -> None:
        self.worker.disputed = call

    @property
    def counts(self) -> Counts:
        return self.worker.counts

    @property
    def round_trips(self) -> RoundTrips:
        return self.worker.round_trips

    @property
    def timeout_seconds(self) -> float:
        return self.worker.timeout.seconds

    @property
    def window_size(self) -> int:
        return len(self.worker.slots)

    @property
    def broken(self) -> P4ReduceError | None:
        return self.worker.broken

    @property
    def next_sequence(self) -> int:
        return self.worker.next_sequence

    @property
    def heard_switch_at(self) -> float:
        return self.worker.heard_switch_at

    @property
    def next_due(self) -> float:
        return self.worker.next_due

    @property
    def idle(self) -> bool:
        return self.worker.idle

    def be_patient(self) -> None:
        self.worker.be_patient()

    def go_on_counting(self, before: Counts, round_trips: RoundTrips) -> None:
        self.worker.counts = before
        self.worker.round_trips.go_on_from(round_trips)

    def count_collective(self) -> None:
        self.worker.counts.collectives += 1

    def submit(self, collective: Collective) -> None:
        self.worker.submit(collective)

    def ranks_left(self, ranks: tuple[int, ...], now: float) -> None:
        self.worker.ranks_left(ranks, now)

    def fail(self, error: P4ReduceError) -> None:
        self.worker.fail(error)

    def resume(self, now: float) -> None:
        self.worker.resume(now)

    def postpone(self, until: float) -> None:
        self.worker.postpone(until)

    def expire(self, now: float) -> None:
        self.worker.tick(now)

    def receive(self, buffer: FrameBuffer, count: int, now: float) -> None:
        for row in range(count):
            self.worker.receive(buffer.get(row), now)

    def take_sendable(self) -> Indices:
        outbox = self.worker.outbox
        for number, frame in outbox.items():
            log.debug("sends %s", describe(frame))
            self.outgoing.put(number, bytes(frame))
        rows = np.array(list(outbox), np.int64)
        outbox.clear()
        return rows

    def sent(self, rows: Indices, now: float) -> None:
        for number in rows.tolist():
            self.worker.sent(number, now)
