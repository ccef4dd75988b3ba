# SPDX-License-Identifier: Apache-2.0
"""Handles of collectives in flight."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from p4reduce.checks import check_seconds
from p4reduce.errors import ClosedError

T = TypeVar("T")


class Ending(Protocol):
    """Something in flight: a stream of blocks, or another handle."""

    def done(self) -> bool:
        """Return whether it has ended, with or without an error."""

    def wait(self, timeout: float | None) -> Any:
        """Wait for the end, at most `timeout` seconds. Raises the error that ended it."""


class Handle(Generic[T]):
    """A collective that one of the communicator's `_async` methods started."""

    __slots__ = ("_process", "_result", "_streams")

    def __init__(self, streams: Sequence[Ending], result: Callable[[], T]) -> None:
        self._process = os.getpid()
        self._streams = streams
        self._result = result

    def done(self) -> bool:
        """Return whether it has ended, with or without an error."""
        return all(stream.done() for stream in self._streams)

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the end and return the result.

        Args:
            timeout: seconds to wait here; 0: do not wait. After that the collective continues, and
                you can wait again. None: until it has ended, at its own deadline at the latest.

        Raises:
            P4ReduceTimeoutError: not over in time.
            ClosedError: the collective was in flight when this process was forked; wait in the
                parent.
            P4ReduceError: what `Communicator.allreduce` raises.
        """
        if self._process != os.getpid() and not self.done():
            raise ClosedError(
                f"this handle belongs to process {self._process}, from which this one was forked; "
                "wait for it there"
            )
        if timeout is None:
            for stream in self._streams:
                stream.wait(None)
        else:
            check_seconds("timeout", timeout)
            end = time.monotonic() + timeout
            for stream in self._streams:
                stream.wait(max(end - time.monotonic(), 0.0))
        value = self._result()
        self._result = lambda: value  # waiting again returns the same
        return value
