# SPDX-License-Identifier: Apache-2.0
"""A flag to wait for, which no exception of a signal handler can leave half set.

`threading.Event` is Python code around a lock. An exception that a signal handler raises inside it
can leave that lock taken for ever. The thread that wants to set the flag would then hang. Here each
step is one call into C, and every order of steps leaves the latch usable.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import RLock as ReentrantLock

_SLICE = 1.0  # seconds; a waiter whose wake-up went to another one looks again by then


class Latch:
    """A flag that is set once, unless its only waiter clears it."""

    __slots__ = ("_gate", "_up")

    def __init__(self) -> None:
        self._up = False
        self._gate = threading.Lock()  # taken while the flag is down
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._up

    def set(self) -> None:
        """Set it and wake the waiter. Any thread may call this, more than once."""
        self._up = True
        self._open()

    def clear(self) -> None:
        """Clear it."""
        self._up = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, at most that many seconds; return whether it is."""
        while not self._up and timeout > 0:
            if not self._gate.acquire(timeout=min(timeout, _SLICE)):
                timeout -= _SLICE
            elif self._up:
                self._open()  # for the next who waits
        return self._up

    def _open(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            return  # it is open


def unlock(lock: ReentrantLock) -> None:
    """Release what this thread holds of a lock after an exception."""
    with contextlib.suppress(RuntimeError):  # not this thread's
        while True:
            lock.release()


def held(lock: ReentrantLock) -> bool:
    """Whether this thread holds the lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # as threading.Condition does
