# SPDX-License-Identifier: Apache-2.0
"""Links with a rate, a delay and queues, around the real P4 program, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from one_process import OneProcess
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.transport.base import RECEIVE_BATCH
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer

LONGEST = 60.0  # virtual seconds


@dataclass
class Link:
    """One direction of a link.

    Attributes:
        rate: bytes a second.
        delay: seconds.
        queue: frames that wait at most; those beyond are lost.
        loss: share of the frames that are lost besides.
    """

    rate: float = 125e6
    delay: float = 1e-4
    queue: int = 1 << 30
    loss: float = 0.0
    _free_at: float = 0.0
    _leaving: deque[float] = field(default_factory=deque)

    def carry(self, size: int, now: float, rng: np.random.Generator) -> float | None:
        """Return when a frame arrives, or None."""
        while self._leaving and self._leaving[0] <= now:
            self._leaving.popleft()
        if len(self._leaving) >= self.queue or rng.random() < self.loss:
            return None
        self._free_at = max(self._free_at, now) + size / self.rate
        self._leaving.append(self._free_at)
        return self._free_at + self.delay


class SlowLinks(OneProcess):
    """A job whose ranks reach the switch by links.

    Args:
        world_size, slots, rng, and urgent at the end: see `OneProcess`.
        up, down: make the links of a rank.
        pause: seconds, on average, for which a rank does not look at what comes (exponentially
            distributed).
    """

    def __init__(
        self,
        world_size: int,
        slots: int,
        rng: np.random.Generator,
        *,
        up: Callable[[], Link] = Link,
        down: Callable[[], Link] = Link,
        pause: float = 0.0,
        urgent: Sequence[int] = (),
    ) -> None:
        super().__init__(world_size, slots, rng, urgent=urgent)
        self.now = 0.0
        self._up = [up() for _ in range(world_size)]
        self._down = [down() for _ in range(world_size)]
        self._pause = pause
        self._inbox: list[list[bytes]] = [[] for _ in range(world_size)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sequence = 0

    def allreduce(self, blocks: int) -> tuple[float, list[npt.NDArray[np.int32]]]:
        """Reduce ones; return the virtual seconds that it takes, and the results."""
        collectives, results = [], []
        for rank, machine in enumerate(self.machines):
            array = np.ones(blocks * 256, np.int32)
            results.append(np.empty_like(array))
            plan = plans.allreduce(
                array, Operation.SUM, None, results[-1], world_size=self.world_size
            )
            one = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=self._sequence,
                slots=self.slots,
                timeout=1e9,
            )
            machine.submit(one)
            collectives.append(one)
            self._send(rank)
        self._sequence += 1
        start = self.now
        while not all(one.done() for one in collectives):
            self.now, _, event = heapq.heappop(self._events)
            assert self.now - start < LONGEST, "it does not come to an end"
            event()
        return self.now - start, results

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), event))

    def _send(self, rank: int) -> None:
        machine = self.machines[rank]
        rows = machine.take_sendable()
        if len(rows):
            machine.sent(rows, self.now)
        for row in rows:
            frame = machine.outgoing.get(row)
            arrival = self._up[rank].carry(len(frame), self.now, self._rng)
            if arrival is not None:
                self._at(arrival, lambda frame=frame: self._at_switch(rank, frame))
        if np.isfinite(machine.next_due):
            self._at(machine.next_due, lambda: self._timer(rank))

    def _at_switch(self, rank: int, frame: bytes) -> None:
        for port, view in self._pipeline.process(rank + 1, frame):
            copy = bytes(view)
            arrival = self._down[port - 1].carry(len(copy), self.now, self._rng)
            if arrival is not None:
                self._at(arrival, lambda to=port - 1, copy=copy: self._arrive(to, copy))

    def _arrive(self, rank: int, frame: bytes) -> None:
        self._inbox[rank].append(frame)
        if len(self._inbox[rank]) == 1:
            pause = self._rng.exponential(self._pause) if self._pause else 0.0
            self._at(self.now + pause, lambda: self._look(rank))

    def _look(self, rank: int) -> None:
        inbox = self._inbox[rank]
        while inbox:
            batch = inbox[:RECEIVE_BATCH]
            del inbox[:RECEIVE_BATCH]
            buffer = FrameBuffer(len(batch))
            for row, frame in enumerate(batch):
                buffer.put(row, frame)
            self.machines[rank].receive(buffer, len(batch), self.now)
        self._send(rank)

    def _timer(self, rank: int) -> None:
        if self.machines[rank].next_due <= self.now:
            self._look(rank)  # what has come counts before timers do
            self.machines[rank].expire(self.now)
            self._send(rank)
