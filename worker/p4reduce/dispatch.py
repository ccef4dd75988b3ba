# SPDX-License-Identifier: Apache-2.0
"""Gives a communicator's calls to its sessions in one order, and ends them all as one."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from p4reduce.checks import check_timeout
from p4reduce.errors import ClosedError, InterruptedCallError, P4ReduceError
from p4reduce.handle import Handle
from p4reduce.latch import unlock
from p4reduce.options import CommunicatorOptions
from p4reduce.session.session import Session
from p4reduce.session.solo import Solo
from p4reduce.spans import Spans
from p4reduce.switches.dealing import CallShare, Dealer
from p4reduce.switches.side_by_side import AnySession, SideBySideSession
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.trace import Trace
from p4reduce.wire.calls import Call

T = TypeVar("T")
Observer = Trace | Spans


class Dispatcher:
    """The calls of a communicator.

    Args:
        session: to which they go, or several side by side.
        options: of the communicator.

    Attributes:
        session, options: as given.
        sessions: one per switch.
    """

    def __init__(self, session: AnySession, options: CommunicatorOptions) -> None:
        self.session = session
        if isinstance(session, SideBySideSession):
            self.sessions: Sequence[Session | Solo] = session.sessions
            self._dealer = Dealer(self.sessions, session.wake)
        else:
            self.sessions = (session,)
            self._dealer = Dealer(self.sessions)
        self._rank = session.rank
        self.options = options
        self._lock = threading.RLock()
        self._starting = False  # between counting collectives and having started all of them
        self._call = _CallInFlight()
        self._in_flight: deque[Collective] = deque()
        self._closed = False
        self._observers: tuple[Observer, ...] = ()
        self._process = os.getpid()
        # At exit, or when the last reference is gone: the others must not wait for us.
        self._finalizer = weakref.finalize(self, _abandon, session, self._process)

    @property
    def closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this process was forked from that of the communicator."""
        return self._process != os.getpid()

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._dealer.calls

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each switch in the next calls; they add up to 1."""
        return self._dealer.shares

    # -- A call ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """This thread begins a call, and has started nothing in it yet."""
        self._call.started = False

    def start(
        self,
        plans: Sequence[CollectivePlan[Any]],
        result: Callable[[], T],
        timeout: float | None,
        *,
        here: bool = False,
    ) -> Handle[T]:
        """Run plans as this rank's next collectives; `result` is called when all are over.

        Args:
            plans: in the order in which all ranks start them.
            result: makes what the handle's `wait` returns.
            timeout: seconds, for all of them; None: the communicator's.
            here: whether this thread will wait for them at once. It may run them then.

        Raises:
            TypeError, ValueError: an argument is invalid.
            ClosedError: the communicator is closed, or of a process from which this was forked.
            P4ReduceError: the error that broke the communicator.
        """
        if timeout is None:
            timeout = self.options.timeout
        check_timeout(timeout)
        self.check_process()
        called = time.monotonic() if self._observers else 0.0
        with self._lock:
            self._check_open()
            if self._starting and self.session.broken is None:
                self.session.on_interrupted(_interrupted("another call, which had not begun all"))
            if len(self.sessions) > 1 and (broken := self.session.broken) is not None:
                raise copy.copy(broken)  # a switch that was spared by it would take the call
            deal = self._dealer.deal(plans)
            # All are made before any runs: what is wrong with one input must not leave this rank
            # with half of what the others call.
            streams = [self._stream(part, timeout) for part in deal.parts]
            for observer in self._observers:
                for part, stream in zip(deal.parts, streams, strict=True):
                    observer.add(stream, called or stream.started, part.session.job)
            # Counted before they start: two collectives of one number would be added up as one.
            self._call.started = self._starting = True
            deal.keep()
            self._in_flight.extend(streams)
            here = (here or self._call.is_awaited) and len(streams) == 1
            try:
                for part, stream in zip(deal.parts, streams, strict=True):
                    part.session.submit(stream, here=here)
            except P4ReduceError as error:
                for stream in streams:
                    stream.finish(error)
                raise
            self._starting = False
            while len(self._in_flight) > 1 and self._in_flight[0].done():
                self._in_flight.popleft()
        wanted = [stream for part, stream in zip(deal.parts, streams, strict=True) if part.wanted]
        return Handle(wanted, result)

    def awaiting(self) -> AbstractContextManager[None]:
        """Return a context in which this thread waits for each call that it starts, at once."""
        return self._call

    def left_by(self, error: BaseException) -> None:
        """An exception leaves a call; unless it is one of the call's own, nothing is sure."""
        if isinstance(error, P4ReduceError):
            return
        if isinstance(error, (TypeError, ValueError, MemoryError)) and not self._call.started:
            return  # what is wrong with the arguments shows before anything has started
        if self.forked:
            return
        unlock(self._lock)
        broken_by = _interrupted(f"{type(error).__name__} {error}".rstrip())
        self.session.on_interrupted(broken_by)
        for collective in list(self._in_flight):
            collective.finish(broken_by)  # what had not been started when the exception came

    def check_process(self) -> None:
        """Refuse a forked child. Raises ClosedError."""
        if self.forked:
            raise ClosedError(
                f"this communicator belongs to process {self._process}, from which this one was "
                'forked; fork before init, or start the process by multiprocessing\'s "spawn"'
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the communicator is closed")

    def _stream(self, part: CallShare, timeout: float) -> Collective:
        plan = part.plan
        own = _slots_for(plan.call, part.session)
        return Collective(
            plan.call if self.options.check_shapes else plan.call.of_any_shape(),
            plan.source,
            plan.target,
            sequence=part.sequence,
            slots=len(own),
            first_slot=own.start,
            timeout=timeout,
            lane_format=plan.lane_format,
            noise=plan.noise(self._rank, part.number),
            number=part.number,
            counted=plan.counted,
            on_end=part.on_end,
            place=part.place,
        )

    # -- Observers -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def observing(self) -> Iterator[list[Observer]]:
        """Have the lock, for one more observer; yields those that are open.

        What the block appends observes the calls from now on. Raises ClosedError.
        """
        self.check_process()
        with self._lock:
            self._check_open()
            there = [one for one in self._observers if one.open]
            yield there
            self._observers = tuple(there)

    # -- The end ---------------------------------------------------------------------------------

    def close(self, *, wait: bool) -> None:
        """Take no more calls, and leave the job. Idempotent.

        Args:
            wait: for the calls in flight, within their deadlines, and for what the others need.
        """
        if self.forked:
            return
        with self._lock:
            self._closed = True
        if wait and not self._starting:  # else by a signal handler, in the middle of a call
            for collective in list(self._in_flight):
                collective.join()
        self.session.close(linger=wait)
        self.retire()

    def retire(self) -> None:
        """Take no more calls; the session is somebody else's."""
        with self._lock:
            self._closed = True
        self._finalizer.detach()
        with contextlib.ExitStack() as closing:  # all, also where one cannot write its file
            for observer in self._observers:
                closing.callback(observer.close)


class _CallInFlight(threading.local):
    """A thread's call under way; and a context, in which it is awaited.

    Attributes:
        started: whether it has given anything to the progress thread.
        is_awaited: whether the thread waits for what it starts at once, also by a handle.
    """

    started = False
    is_awaited = False

    def __enter__(self) -> None:
        self.is_awaited = True

    def __exit__(self, *error: object) -> None:
        self.is_awaited = False


def _slots_for(call: Call, session: Session | Solo) -> range:
    """Return the slots that a call's class has on a switch."""
    if isinstance(session, Solo):
        return range(session.slots)
    if call.priority >= len(session.classes):
        raise ValueError(
            f"priority={call.priority} needs slots that are kept for it: init(urgent_slots=) or "
            "P4REDUCE_URGENT_SLOTS says how many for each priority from 1 on, on all ranks; "
            f"{len(session.classes) - 1} of them have some here"
        )
    return session.classes[call.priority]


def _interrupted(by: str) -> InterruptedCallError:
    return InterruptedCallError(
        f"an earlier call was interrupted by {by}. The other ranks may count on it, so "
        "this rank has left the job; close this communicator, and call init again"
    )


def _abandon(session: AnySession, process: int) -> None:
    if os.getpid() == process:
        session.abandon()
