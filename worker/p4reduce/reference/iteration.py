# SPDX-License-Identifier: Apache-2.0
"""The loop of reference workers on a port: send, wait, receive, check timers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from p4reduce.machine_code import ITERATION_OVERSLEPT
from p4reduce.reference.frames import describe
from p4reduce.reference.worker import Worker
from p4reduce.transport.base import Transport
from p4reduce.wire.frames import FrameBuffer

log = logging.getLogger("p4reduce.reference")

_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_OVERSLEPT = 1.0  # seconds longer than asked for: the process was stopped, or starved


class ReferenceIteration:
    """Moves one worker's frames, in place of `protocol.native_iteration.NativeIteration`.

    Attributes:
        asked_at: when the first frame since the switch's last answer was sent; infinite: none was.
        asked: how many frames were sent since then.

    Args:
        worker: whose frames they are.
        transport: to the switch.
    """

    def __init__(self, worker: Worker, transport: Transport) -> None:
        self.asked_at = math.inf
        self.asked = 0
        self._worker = worker
        self._transport = transport
        self._outgoing = FrameBuffer(1)

    def run(self, others: Sequence[Any], _quiet: float) -> int:
        """Run one iteration. Return `ITERATION_OVERSLEPT` if the wait took much too long, or 0.

        Args:
            others: workers on the same port.
        """
        iterations = (self, *others)
        all_sent = [iteration._send() for iteration in iterations]
        began = time.monotonic()
        until = min(
            _LONGEST_WAIT, *(iteration._worker.next_due - began for iteration in iterations)
        )
        self._transport.wait(max(until, 0.0), writable=not all(all_sent))
        if time.monotonic() - began > max(until, 0.0) + _OVERSLEPT:
            return ITERATION_OVERSLEPT
        # What has come counts before timers do: after a pause, answers lie in the queue.
        while count := self._transport.receive():
            for row in range(count):
                self._hand_out(iterations, row)
            for iteration in iterations:
                iteration._send()
        for iteration in iterations:
            iteration._worker.tick(time.monotonic())
        return 0

    def take_events(self) -> int:
        """Return 0: callers leave no work to the progress thread."""
        return 0

    def raise_problem(self) -> None:
        """Do nothing: `run` raises errors of the transport."""

    def _send(self) -> bool:
        """Send what the worker wants sent. False: something waits for room."""
        outbox = self._worker.outbox
        for number, frame in list(outbox.items()):
            self._outgoing.put(0, bytes(frame))
            if not self._transport.send(self._outgoing, np.zeros(1, np.int64)):
                return False
            log.debug("sends %s", describe(frame))
            del outbox[number]
            now = time.monotonic()
            self._worker.sent(number, now)
            self.asked_at = min(self.asked_at, now)
            self.asked += 1
        return True

    @staticmethod
    def _hand_out(iterations: Sequence[ReferenceIteration], row: int) -> None:
        """Give a frame to the worker that it names; one for nobody to the first, to be counted."""
        received = iterations[0]._transport.received
        record = received.records[row]
        named = [
            iteration
            for iteration in iterations
            if iteration._worker.name == (record["job"], record["rank"])
        ]
        (named or iterations)[0]._worker.receive(received.get(row), time.monotonic())
