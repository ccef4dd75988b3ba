# SPDX-License-Identifier: Apache-2.0
"""The threads that complete futures and run their callbacks, each in order; and one more.

A callback may itself call a collective and wait for its future, as that of PowerSGD does: with one
thread for all futures that would wait for ever. So futures of collectives called from a callback
are completed by a second thread (and from a callback of those by a third).

That one settles works which their script has dropped without waiting.

They are no daemons: a daemon thread that is within c10d when the interpreter goes aborts the
process. They are stopped before the interpreter joins its threads, when all that they wait for
has been ended (`at_exit`).
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable

from p4reduce_common.threads import new_thread

log = logging.getLogger(__name__)

Job = Callable[[], None]
_Queue = queue.SimpleQueue[Job | None]


def at_exit(function: Callable[[], None]) -> None:
    """Call a function before the interpreter joins its threads; `atexit` would be after that.

    What was registered last is called first.
    """
    threading._register_atexit(function)  # type: ignore[attr-defined]  # as concurrent.futures does


class FutureThread:
    """Runs jobs in order, in a thread that starts with the first one.

    The thread ends with `stop`, or when nobody can submit a job any more.

    Args:
        name: of the thread.
        level: what `current_level` returns in it.
    """

    def __init__(self, name: str, level: int = 0) -> None:
        self._name = name
        self._level = level
        self._lock = threading.Lock()
        self._running: tuple[threading.Thread, _Queue] | None = None
        _threads.add(self)

    def submit(self, job: Job) -> None:
        """Run a job after earlier ones. It must not raise."""
        with self._lock:
            self._start().put(job)

    def start(self) -> None:
        """Start the thread, for `submit_if_started`."""
        with self._lock:
            self._start()

    def submit_if_started(self, job: Job) -> None:
        """As `submit`, without a lock, for callers such as `__del__`; nothing without a thread."""
        running = self._running
        if running is not None:
            running[1].put(job)

    def _start(self) -> _Queue:
        if self._running is None:
            jobs = _Queue()
            thread = new_thread(_work, self._name, args=(jobs, self._level), daemon=False)
            self._running = thread, jobs
            # The thread knows the queue alone, so this may go before it.
            weakref.finalize(self, jobs.put, None).atexit = False
            thread.start()
        return self._running[1]

    def stop(self) -> None:
        """End the thread after its present jobs. A later job starts another one."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            thread, jobs = running
            jobs.put(None)
            if thread is not threading.current_thread():
                thread.join()


class _Here(threading.local):
    """What a thread is for.

    Attributes:
        level: see `current_level`.
    """

    level = 0


_here = _Here()


def _work(jobs: _Queue, level: int) -> None:
    _here.level = level
    while (job := jobs.get()) is not None:
        try:
            job()
        except (
            BaseException
        ):  # a fault of ours: the later jobs have futures that somebody waits for
            log.exception("a job of a thread for futures failed")
        del job  # holds tensors


def _stop_all() -> None:
    for thread in list(_threads):
        thread.stop()


_threads: weakref.WeakSet[FutureThread] = weakref.WeakSet()
# Registered before all that ends what the threads wait for, so it is called after them.
at_exit(_stop_all)

_lock = threading.Lock()
_levels = [FutureThread("p4reduce-futures", 1)]


def current_level() -> int:
    """Return 0 outside of callbacks, 1 in one, and so on for their own callbacks."""
    return _here.level


def next_level() -> FutureThread:
    """Return the thread that completes the futures of collectives called here."""
    with _lock:
        level = current_level()
        if level == len(_levels):
            _levels.append(FutureThread(f"p4reduce-futures-{level}", level + 1))
        return _levels[level]


_dropped = FutureThread("p4reduce-dropped")


def expect_dropped() -> None:
    """Start the thread of `settle_dropped`."""
    _dropped.start()


def settle_dropped(settle: Job) -> None:
    """Settle a work that nobody has any more, after earlier ones. Called by `__del__`."""
    _dropped.submit_if_started(settle)
