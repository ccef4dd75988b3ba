# SPDX-License-Identifier: Apache-2.0
"""Calls that other threads ask the data plane's thread to make, between two packets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from p4reduce_switch.errors import unavailable

__all__ = ["Requests", "result_of"]

_T = TypeVar("_T")


class Requests:
    """What has been asked for and is still to be done. Any thread may ask, one serves."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def ask(self, action: Callable[[], _T]) -> Future[_T]:
        """Have `action` called at the next `serve`."""
        future: Future[_T] = Future()
        self._waiting.append((future, action))
        return future

    def serve(self) -> None:
        """Make the calls that wait, in their order."""
        for _ in range(len(self._waiting)):
            future, action = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)


def result_of(future: Future[_T], timeout: float) -> _T:
    """What the call returned; what it raised is raised here.

    Raises:
        P4RuntimeError: UNAVAILABLE, it did not begin within `timeout` seconds; it never will.
    """
    wait((future,), timeout)
    # Whoever waited is told that it failed, so it must not happen later.
    if future.cancel():
        raise unavailable(f"the data plane did not answer within {timeout:.0f} s")
    return future.result()
