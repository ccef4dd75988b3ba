# SPDX-License-Identifier: Apache-2.0
"""Calls that the data plane's thread makes for other threads, between two packets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from p4reduce_switch.errors import unavailable

_T = TypeVar("_T")


class Requests:
    """The waiting calls. Any thread may add one; one thread makes them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def ask(self, action: Callable[[], _T]) -> Future[_T]:
        """Add a call of `action` for the next `serve`."""
        future: Future[_T] = Future()
        self._waiting.append((future, action))
        return future

    def serve(self) -> None:
        """Make the waiting calls in order."""
        for _ in range(len(self._waiting)):
            future, action = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)


def result_of(future: Future[_T], timeout: float) -> _T:
    """Return the result of the call, or raise what it raised.

    Raises:
        P4RuntimeError: UNAVAILABLE, the call did not start within `timeout` seconds, and will not.
    """
    wait((future,), timeout)
    # The caller got an error, so the request must not run later.
    if future.cancel():
        raise unavailable(f"the data plane did not answer within {timeout:.0f} s")
    return future.result()
