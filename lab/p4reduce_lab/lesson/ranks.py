# SPDX-License-Identifier: Apache-2.0
"""A rank without threads and without a clock: the worker's slots, moved by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer

Array = npt.NDArray[Any]


class LessonRank:
    """One rank of a job, and the all-reduces that it has called.

    Args:
        number: its rank.
        size: the world size.
        job: the job's incarnation.
        slots: how many the job has.
        here, switch: addresses.

    Attributes:
        alive: whether it takes frames and repeats its own.
        waits_for: the round that its latest frame is of.
    """

    def __init__(
        self, number: int, size: int, job: int, slots: int, here: Endpoint, switch: Endpoint
    ) -> None:
        self.number = number
        self.alive = True
        self.waits_for = "the switch"
        self._size = size
        self._slots = slots
        self._machine = SlotMachine(
            slots=slots, job=job, rank=number, world_size=size, here=here, switch=switch
        )
        self._machine.window_size = slots
        self._buffer = FrameBuffer(1)
        self._calls: list[tuple[Collective, Array]] = []
        self._now = 0.0

    def allreduce(self, array: Array) -> None:
        """Call an all-reduce."""
        result = np.zeros_like(array)
        plan = plans.allreduce(
            array, Operation.SUM, f"call{len(self._calls)}", result, world_size=self._size
        )
        collective = Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=len(self._calls),
            slots=self._slots,
            timeout=1.0,
            lane_format=plan.lane_format,
        )
        collective.deadline = math.inf  # nobody hurries
        self._calls.append((collective, result))
        self._machine.submit(collective)

    def receive(self, frame: bytes) -> None:
        """Take a frame from the switch."""
        if self.alive:
            self._buffer.put(0, frame)
            self._machine.receive(self._buffer, 1, self._now)

    def repeat(self) -> None:
        """Let the timers run out of all that waits for an answer."""
        due = self._machine.next_due
        if self.alive and math.isfinite(due):
            self._now = max(self._now, due)
            self._machine.expire(self._now)

    def take(self) -> list[bytes]:
        """The frames that it sends now."""
        if not self.alive:
            return []
        rows = self._machine.take_sendable()
        frames = [self._machine.outgoing.get(int(row)) for row in rows]
        self._machine.sent(rows, self._now)
        return frames

    @property
    def state(self) -> str:
        """How far it is, in words."""
        if not self.alive:
            return "dead"
        if not self._calls:
            return "has called nothing"
        collective, result = self._calls[-1]
        if collective.error is not None:
            return f"error: {collective.error}"
        if collective.done():
            return f"done: {_numbers(result)}"
        return f"waits for {self.waits_for}"

    @property
    def result(self) -> Array | None:
        """What its last call returned; None while that is under way, and after an error."""
        if not self._calls:
            return None
        collective, result = self._calls[-1]
        return result if collective.done() and collective.error is None else None

    @property
    def error(self) -> str:
        """The outcome of its last call; empty if with nothing."""
        return str(self._calls[-1][0].error or "") if self._calls else ""


def _numbers(array: Array) -> str:
    first = ", ".join(str(number) for number in array[:4].tolist())
    return f"{first}, …" if len(array) > 4 else first
