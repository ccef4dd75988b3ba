# SPDX-License-Identifier: Apache-2.0
"""The thread that makes progress: it moves frames between a transport and a `SlotMachine`."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from p4reduce.blocks import Indices
from p4reduce.collective import Collective
from p4reduce.errors import ClosedError, P4ReduceError
from p4reduce.slots import SlotMachine
from p4reduce.statistics import Statistics
from p4reduce.transport.base import Transport

_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway


class Engine:
    """Runs a job's collectives in a thread of its own.

    Args:
        machine: what to run; from now on for the thread alone.
        transport: how to reach the switch; closed at the end.
        name: of the thread.
    """

    def __init__(self, machine: SlotMachine, transport: Transport, name: str) -> None:
        self._machine = machine
        self._transport = transport
        self._backlog: Indices = np.arange(0)
        self._requests: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._stopped = False
        self._finally_dropped = 0
        self._lock = threading.Lock()  # between submitting and the thread's end
        self.cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def broken(self) -> P4ReduceError | None:
        """Why nothing can be reduced any more, or None."""
        return self._machine.broken

    def submit(self, collective: Collective) -> None:
        """Start a collective. Raises what broke the engine before."""
        self._request(lambda: self._machine.submit(collective))

    def ranks_left(self, ranks: tuple[int, ...]) -> None:
        """Tell that ranks left the job."""
        with contextlib.suppress(P4ReduceError):
            self._request(lambda: self._machine.ranks_left(ranks, time.monotonic()))

    def fail(self, error: P4ReduceError) -> None:
        """End all collectives with an error."""
        with contextlib.suppress(P4ReduceError):
            self._request(lambda: self._machine.fail(error))

    def statistics(self) -> Statistics:
        """Return the figures so far."""
        machine = self._machine
        p50, p90, p99 = machine.round_trips.percentiles(50, 90, 99)
        return Statistics(
            **asdict(machine.counts),
            dropped=self._dropped(),
            round_trip_p50=p50,
            round_trip_p90=p90,
            round_trip_p99=p99,
            retransmission_timeout=machine.timeout.seconds,
        )

    def _dropped(self) -> int:
        with self._lock:
            return self._finally_dropped if self._stopped else self._transport.dropped

    def stop(self, timeout: float) -> None:
        """End the thread; what is under way ends with `ClosedError`."""
        with self._lock:
            self._stopping = True
            if not self._stopped:
                self._transport.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _request(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._machine.broken is not None:
                raise copy.copy(self._machine.broken)
            if self._stopping or self._stopped:
                raise ClosedError("the communicator is closed")
            self._requests.append(work)
            self._transport.wake()

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: P4ReduceError = ClosedError("the communicator was closed")
        try:
            while not self._stopping:
                self._turn()
        except P4ReduceError as problem:
            error = problem
        except BaseException as problem:
            error = P4ReduceError(f"the progress thread failed: {problem!r}")
            error.__cause__ = problem
            raise
        finally:
            with self._lock:
                self._stopped = True
                self._machine.fail(error)
                while self._requests:
                    self._requests.popleft()()  # finds the machine broken
                with contextlib.suppress(OSError):
                    self._finally_dropped = self._transport.dropped
                self._transport.close()

    def _turn(self) -> None:
        machine, transport = self._machine, self._transport
        while self._requests:
            self._requests.popleft()()
        self._send()
        now = time.monotonic()
        until = min(machine.next_due - now, _LONGEST_WAIT)
        transport.wait(until, writable=bool(len(self._backlog)))
        # What has come counts before timers do: after a pause of this thread, answers lie in
        # the queue.
        while count := transport.receive():
            machine.receive(transport.received, count, time.monotonic())
            self._send()
            if count < len(transport.received):
                break
        machine.expire(time.monotonic())
        self.cpu_seconds = time.thread_time()

    def _send(self) -> None:
        """Send what can be sent; what the transport does not take waits for room."""
        rows = self._machine.take_sendable()
        if len(self._backlog):
            rows = np.concatenate((self._backlog, rows))
        if len(rows):
            done = self._transport.send(self._machine.outgoing, rows)
            self._backlog = rows[done:]
            self._machine.sent(rows[:done], time.monotonic())
