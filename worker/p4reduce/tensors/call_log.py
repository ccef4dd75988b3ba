# SPDX-License-Identifier: Apache-2.0
"""The collectives of a communicator that are not over, in the order of their calls."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager

from p4reduce.errors import P4ReduceError
from p4reduce.tensors.stream import Collective


class CallLog:
    """What a rank has called and has no result of.

    Thread-safe.

    Args:
        lock: the owner's, which may be taken again by the thread that has it.
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self._lock = lock or threading.RLock()
        self._calls: deque[Collective] = deque()  # without the first ones that are over
        self._next = 0

    def add(self, collective: Collective) -> None:
        """Note a collective, in order, before it runs."""
        with self._lock:
            self._drop_first()
            self._calls.append(collective)
            self._next = collective.sequence + 1

    def _drop_first(self) -> None:
        while self._calls and self._calls[0].done():
            self._calls.popleft()

    @property
    def in_flight(self) -> list[Collective]:
        """The collectives that callers wait for, in order."""
        with self._lock:
            self._drop_first()
            return [one for one in self._calls if not one.done()]

    @property
    def completed(self) -> int:
        """The number of the first collective whose result this rank lacks.

        It has all earlier results, and perhaps later ones.
        """
        with self._lock:
            self._drop_first()
            return self._calls[0].sequence if self._calls else self._next

    def since(self, number: int) -> list[Collective]:
        """Return those in flight from a number on, in order."""
        return [one for one in self.in_flight if one.sequence >= number]

    def fail(self, error: P4ReduceError) -> None:
        """End all collectives."""
        with self._lock:
            for one in self._calls:
                one.finish(error)
            self._calls.clear()
