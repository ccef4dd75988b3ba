# SPDX-License-Identifier: Apache-2.0
"""Connects a `SlotMachine` with its driver: the port's thread, or the caller of a collective."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from p4reduce.errors import ClosedError, P4ReduceError, SwitchUnreachableError
from p4reduce.latch import Latch
from p4reduce.machine_code import (
    ITERATION_BROKEN,
    ITERATION_DONE,
    ITERATION_OVERSLEPT,
    ITERATION_PAUSED,
)
from p4reduce.protocol.native_iteration import NativeIteration
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.machine import Machine
from p4reduce.session.port import PortShare, run_requests
from p4reduce.statistics import Statistics
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.stream import Collective
from p4reduce.thread_failure import ThreadFailedError

_TRIES_TO_TELL = 3  # sendings without an answer, after which it is overdue
GRACE = 4.0  # seconds for the lease's thread to hear what has happened meanwhile
_ABORT_LOOK = 0.05  # seconds between two looks at whether the thread is there at all


@dataclass(frozen=True)
class EngineOwner:
    """Whom an engine calls when it ends.

    Attributes:
        lost: called by the thread, as the last thing that it does, when the transport broke. The
            collectives are then left as they are. None: they end with the transport's error.
        failed: called in the same way when the port's thread failed.
        disputed: see `SlotMachine`.
    """

    lost: Callable[[SwitchUnreachableError], None] | None = None
    failed: Callable[[ThreadFailedError], None] | None = None
    disputed: Callable[[Dispute], object] | None = None


class Engine:
    """Runs a machine's collectives in the thread of its port, and closes its share at the end.

    Attributes:
        machine: for that thread alone from now on.
        lock: held where a request meets the thread's end.
        iteration: what moves the machine's frames.
    """

    def __init__(
        self, machine: Machine, share: PortShare, owner: EngineOwner = EngineOwner()
    ) -> None:
        self.machine = machine
        self._share = share
        self._port = share.port
        self._transport = share.port.transport
        self._requests: deque[Callable[[], object]] = deque()
        self._own(owner)
        self._stopping = False
        self._kept = False  # whether the collectives are left as they are at the end
        self._stopped = False
        self._ended = Latch()
        self._finally_dropped = 0
        self._slots = machine if isinstance(machine, SlotMachine) else None
        self.iteration = machine.iteration(self._transport, self._port.lock)
        if self._transport.lossless:
            machine.use_local_floor()
        self.lock = threading.RLock()  # between submitting and the end
        self._port.add_engine(self)

    def _own(self, owner: EngineOwner) -> None:
        self._owner = owner
        self.machine.disputed = owner.disputed

    @property
    def udp_port(self) -> int:
        """The transport's UDP port; 0 if it has no addresses."""
        endpoint = self._transport.endpoint
        return 0 if endpoint is None else endpoint.udp_port

    def submit(self, collective: Collective, *, here: bool = False) -> None:
        """Start a collective. Raises the error that broke the engine before.

        `here`: whether this thread will wait for it at once, and may run it itself.
        """
        if not (here and self._leave_to_caller(collective)):
            self._request(lambda: self.machine.submit(collective))

    def _leave_to_caller(self, collective: Collective) -> bool:
        """Let the thread that waits for a collective run it, if nothing else is under way.

        To wake another thread for it, and to be woken by that, takes longer than a small
        collective. It is among what the progress thread is asked for all the same, in order, so
        that it may as well find it there when it is woken by something else.
        """
        lock, iteration, slots = self._port.lock, self.iteration, self._slots
        if lock is None or not isinstance(iteration, NativeIteration) or slots is None:
            return False
        with self.lock:
            iterations = lock.iterations
            if not lock.is_free or self._requests or self._port.asked:
                return False
            if self._stopping or self._stopped:
                return False
            stream = slots.prepare(collective)
            if stream is None:
                return False
            start = functools.partial(self._start, slots, collective)
            collective.runner = functools.partial(
                self._run_here, iteration, slots, collective, start, stream, iterations
            )
            self._requests.append(start)
            return True

    def _start(self, slots: SlotMachine, collective: Collective) -> None:
        """In the port's thread: start a collective that was left to its caller, unless it began."""
        if slots.next_sequence <= collective.sequence:
            slots.submit(collective)
        elif not collective.remaining:
            slots.completed_by_caller(collective)  # an exception has cut its caller off

    def _run_here(
        self,
        iteration: NativeIteration,
        slots: SlotMachine,
        collective: Collective,
        start: Callable[[], None],
        stream: int,
        iterations: int,
    ) -> None:
        """Run a collective in the thread that waits for it, as far as C can do it alone.

        The link's lock is held within C alone: an exception of a signal handler finds either that
        nothing was done, or that the port's thread has to continue.
        """
        why = ITERATION_PAUSED
        while why == ITERATION_PAUSED:
            why = iteration.run_for_caller(stream, iterations, collective.counted)
        if why == ITERATION_DONE:
            self._withdraw(start)
            slots.completed_by_caller(collective)
            return
        with self.lock:
            if not self._stopped:
                self._transport.wake()

    def _withdraw(self, request: Callable[[], None]) -> None:
        """Take back a request that the thread may have taken already."""
        try:
            self._requests.remove(request)
        except ValueError:
            return

    def ranks_left(self, ranks: tuple[int, ...]) -> None:
        """Note that ranks left the job."""
        with contextlib.suppress(P4ReduceError):
            self._request(lambda: self.machine.ranks_left(ranks, time.monotonic()))

    def fail(self, error: P4ReduceError) -> None:
        """End all collectives with an error."""
        with contextlib.suppress(P4ReduceError):
            self._request(lambda: self.machine.fail(error))

    def abort(self, error: P4ReduceError, timeout: float) -> None:
        """As `fail`, and return when no input is read and no output written any more.

        For a thread whose call was interrupted by an exception, even within this class.
        """
        over = Latch()

        def fail() -> None:
            self.machine.fail(error)
            over.set()

        with contextlib.suppress(P4ReduceError):
            self._request(fail)
            end = time.monotonic() + timeout
            while not (over.wait(_ABORT_LOOK) or self._stopped) and time.monotonic() < end:
                pass

    def adopt(self, take_over: Callable[[], None], owner: EngineOwner) -> bool:
        """Let the thread take over what another machine has under way, and set the owner.

        Returns False if the transport broke already: `take_over` is not called then.
        """
        with self.lock:
            if self._stopped:
                return False
            self._own(owner)
            self._requests.append(take_over)
            self._transport.wake()
            return True

    def silence(self) -> tuple[float, float]:
        """Return how long the switch has owed an answer, and how long ago it last answered.

        Both are in seconds; 0 if it owes none, or never answered. A repeated contribution is always
        answered, even if ranks are missing, and is repeated several times per second.
        """
        now, asking = time.monotonic(), self.iteration
        asked_at, heard = asking.asked_at, self.machine.heard_switch_at
        return (
            max(now - asked_at, 0.0) if asking.asked >= _TRIES_TO_TELL else 0.0,
            max(now - heard, 1e-6) if math.isfinite(heard) else 0.0,
        )

    def statistics(self) -> Statistics:
        """Return the statistics so far."""
        machine = self.machine
        with self.lock:
            dropped = self._finally_dropped if self._stopped else self._transport.dropped
        p50, p90, p99 = machine.round_trips.percentiles(50, 90, 99)
        return Statistics(
            **asdict(machine.counts),
            dropped=dropped,
            round_trip_p50=p50,
            round_trip_p90=p90,
            round_trip_p99=p99,
            retransmission_timeout=machine.timeout_seconds,
            window=machine.window_size,
        )

    def stop(self, timeout: float) -> None:
        """End the engine. Collectives in flight end with `ClosedError`."""
        with self.lock:
            self._stopping = True
            if not self._stopped:
                self._transport.wake()
        if not self._port.in_thread:
            self._ended.wait(timeout)
            if self._port.over:  # this was the last one on it
                self._port.join(timeout)

    def halt(self, timeout: float) -> bool:
        """End the engine and leave collectives in flight as they are, for another engine.

        Returns whether no thread uses the machine any more. If not, call it again.
        """
        with self.lock:
            self._kept = True
        self.stop(timeout)
        return self._ended.is_set()

    def _request(self, work: Callable[[], None]) -> None:
        with self.lock:
            if self.machine.broken is not None:
                raise copy.copy(self.machine.broken)
            if self._stopped and self._kept:
                return  # the keeper of the collectives runs this one as well
            if self._stopping or self._stopped:
                raise ClosedError("the communicator is closed")
            self._requests.append(work)
            self._transport.wake()

    # -- In the port's thread ----------------------------------------------------------------------

    def take_events(self) -> None:
        """Handle what callers have left to the port's thread."""
        if why := self.iteration.take_events():
            self.run_iteration(why)

    def run_iteration(self, why: int) -> None:
        """Handle what an iteration has done, and why it returned: see `NativeIteration.run`."""
        machine, iteration = self.machine, self.iteration
        machine.take_events(time.monotonic())
        if why & ITERATION_BROKEN:
            iteration.raise_problem()
        if why & ITERATION_OVERSLEPT:
            # A stopped process has not waited: before it says that the others are missing, it has
            # to hear whether it is missed itself.
            machine.postpone(time.monotonic() + GRACE)
        if machine.idle or machine.heard_switch_at >= iteration.asked_at:
            iteration.asked_at, iteration.asked = math.inf, 0

    def begin_iteration(self) -> bool:
        """Handle requests. Return False if the engine must end."""
        run_requests(self._requests)
        return not self._stopping

    def _fail_all(self, error: P4ReduceError) -> None:
        self.machine.fail(error)
        while self._requests:
            with contextlib.suppress(Exception):
                self._requests.popleft()()  # finds the machine broken

    def end(self, error: P4ReduceError) -> Callable[[], None] | None:
        """The thread is done with the engine. Return what to call afterwards."""
        lost = error if isinstance(error, SwitchUnreachableError) and not self._stopping else None
        with contextlib.suppress(Exception):
            self.take_events()  # what a caller has begun must be ended, or kept, as the others
        with self.lock:
            self._stopped = True
            self._kept |= lost is not None and self._owner.lost is not None
            try:
                if self._kept:
                    run_requests(self._requests)  # the next engine finds what they lead to
                else:
                    self._fail_all(error)
                with contextlib.suppress(OSError):
                    self._finally_dropped = self._transport.dropped
                self._share.close()
            finally:
                self._ended.set()
        # It holds the session, which holds this: nothing of either would be freed until Python
        # looks for circles.
        owner = self._owner
        self._own(EngineOwner())
        if isinstance(error, ThreadFailedError) and owner.failed is not None:
            return functools.partial(owner.failed, error)
        if owner.lost is None or lost is None:
            return None
        return functools.partial(owner.lost, lost)
