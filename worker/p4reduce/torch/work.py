# SPDX-License-Identifier: Apache-2.0
"""The result of starting a collective: a `Work`, to wait for or to turn into a future."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.futures import promise
from p4reduce.torch.tensors import nothing

Wait = Callable[[float | None], None]


class Outcome:
    """How a collective ends. The first caller that asks finds out, once.

    Args:
        wait: waits for the end, with a timeout or without. It raises the caller's error.
            With seconds, `pending` says whether it was only too early.
        finish: what has to be done then, such as writing to tensors of another layout.
        pending: whether it is still under way.
    """

    def __init__(self, wait: Wait, finish: Callable[[], None], pending: Callable[[], bool]) -> None:
        self._wait = wait
        self._finish = finish
        self._pending = pending
        self._lock = threading.Lock()
        self._over = False
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """Its error, if it is known."""
        return self._error

    def is_over(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self._over or not self._pending()

    def settle(self, timeout: float | None = None) -> None:
        """Wait, and raise the error that ended it.

        Args:
            timeout: seconds; None: as long as the collective may take.
        """
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise dist.DistBackendError(
                f"p4reduce: not complete after {timeout:.3g} s; it continues"
            )
        try:
            if not self._over:
                self._run(timeout)
            if self._error is not None:
                raise self._error
        finally:
            self._lock.release()

    def _run(self, timeout: float | None) -> None:
        try:
            self._wait(timeout)
            self._finish()
        except BaseException as error:
            if timeout is not None and self._pending():
                raise
            self._error = error
        self._over = True
        # What they hold, tensors above all, is not needed any more.
        del self._wait, self._finish, self._pending


@methods_eagerly
class OutcomeWork(dist.Work):
    """A collective in flight.

    Args:
        outcome: of the collective.
        tensors: its result, as the future gives it.
    """

    def __init__(self, outcome: Outcome, tensors: Any) -> None:
        super().__init__()
        self._outcome = outcome
        self._tensors = tensors
        self._future: torch.futures.Future[Any] | None = None

    @classmethod
    def of_all(cls, works: Sequence[OutcomeWork], tensors: Any) -> OutcomeWork:
        """Return a work that ends when all of some have ended."""
        outcomes = [work._outcome for work in works]

        def wait(timeout: float | None) -> None:
            for outcome in outcomes:
                outcome.settle(timeout)

        def pending() -> bool:
            return not all(outcome.is_over() for outcome in outcomes)

        return cls(Outcome(wait, nothing, pending), tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. Raises DistBackendError or DistNetworkError."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._outcome.settle(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """Wait for the end: the memory is the host's, so no stream has to be joined."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors."""
        if self._future is None:
            tensors = self._tensors

            def settle() -> Any:
                self._outcome.settle()
                return tensors

            self._future = promise(settle)
        return self._future

    def is_completed(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self._outcome.is_over()

    def is_success(self) -> bool:
        """Whether it has succeeded."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Its error; None while it runs."""
        if self.is_completed():
            try:
                self._outcome.settle()
            except Exception as error:
                return error
        return None

    def result(self) -> Any:
        """Return the tensors."""
        return self._tensors
