# SPDX-License-Identifier: Apache-2.0
"""Calls in one order on all ranks, even if some must wait for an earlier one.

What an all-reduce of sparse rows sends depends on what the ranks have agreed on just before. That
takes a thread: the script continues meanwhile, as with any asynchronous collective. Calls that
the script makes until then wait in the same thread for their turn, or a rank whose agreement takes
longer would make them in another order than the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from p4reduce_common.figures import three_digits

from p4reduce.errors import P4ReduceTimeoutError
from p4reduce.torch.errors import without_frames
from p4reduce.torch.threads import FutureThread


class QueuedEnding(Protocol):
    """What was called, as `Handle` has it."""

    def done(self) -> bool:
        """Whether it has ended, with or without an error."""

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end, and return the result or raise the error."""


EndingT = TypeVar("EndingT", bound=QueuedEnding)
Begin = Callable[[], QueuedEnding]


class QueuedHandle:
    """A collective that waits for its turn, with the methods of `Handle` used here."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._handle: QueuedEnding | None = None
        self._error: BaseException | None = None

    def begin(self, begin: Begin) -> None:
        """Make the call. `wait` raises its errors."""
        try:
            self._handle = begin()
        except BaseException as error:
            self._error = without_frames(error)
        self._came.set()

    def done(self) -> bool:
        """Whether it has ended, with or without an error."""
        handle = self._handle
        return self._error is not None or (handle is not None and handle.done())

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end, and return the result of the call.

        Raises:
            P4ReduceTimeoutError: its turn has not come within `timeout` seconds.
            P4ReduceError: what the call or `Handle.wait` raises.
        """
        began = time.monotonic()
        if not self._came.wait(timeout):
            assert timeout is not None, "without one it waits for its turn"
            raise P4ReduceTimeoutError(
                f"not complete after {three_digits(timeout)} s; it continues"
            )
        if self._error is not None:
            raise self._error
        assert self._handle is not None, "begin sets one of the two"
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return self._handle.wait(left)


class CallOrder:
    """The order of one communicator's calls.

    Attributes:
        endings: does what has to be done at the end of calls, in their order, as early as it can.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._running = threading.Lock()  # one call at a time, in whatever thread
        self._holder = 0  # the thread that runs a call which waits for others
        self._thread = FutureThread("p4reduce-turns")
        self.endings = FutureThread("p4reduce-endings")

    def take(self, begin: Callable[[], EndingT]) -> EndingT | QueuedHandle:
        """Make a call now, or after the earlier ones."""
        # Only the caller's own earlier calls have to be seen here, and `later` has counted those.
        free = not self._waiting or self.is_inside()
        return begin() if free else self.later(begin)

    def later(self, begin: Begin) -> QueuedHandle:
        """Make a call in the thread, where it may wait for others. All ranks do so alike.

        What is called within another call is a part of that, and made at once.
        """
        call = QueuedHandle()
        if self.is_inside():
            call.begin(begin)
            return call
        with self._lock:
            self._waiting += 1
        self._thread.submit(lambda: self._run_waiting(call, begin))
        return call

    def now(self, begin: Begin) -> QueuedHandle:
        """As `later`, for a caller who only waits: in its own thread if no earlier call waits."""
        with self._lock:
            free = not self._waiting
            self._waiting += free
        if not free:
            return self.later(begin)
        call = QueuedHandle()
        self._run_waiting(call, begin)
        return call

    def is_inside(self) -> bool:
        """Whether this thread is the one that makes the calls that wait for others."""
        return self._holder != 0 and self._holder == threading.get_ident()

    def _run_waiting(self, call: QueuedHandle, begin: Begin) -> None:
        # An exception of a signal handler may come at any moment.
        try:
            self._run(call, begin)
        finally:
            with self._lock:
                self._waiting -= 1

    def _run(self, call: QueuedHandle, begin: Begin) -> None:
        with self._running:
            self._holder = threading.get_ident()
            try:
                call.begin(begin)
            finally:
                self._holder = 0
