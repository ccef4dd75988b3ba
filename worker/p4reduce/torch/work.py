# SPDX-License-Identifier: Apache-2.0
"""The result of starting a collective: a `Work`, to wait for or to turn into a future.

Results are written to the tensors where a collective is found to have ended. So they are there for
a caller who asks whether a work is complete, waits for it, or takes its result or a future. A work
that its script has dropped is asked by a thread of its own (threads.py). The group asks the others
when it is destroyed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce_common.figures import three_digits
from p4reduce_common.threads import new_thread
from torch._C import _distributed_c10d as c10d

from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.errors import without_frames
from p4reduce.torch.futures import promise
from p4reduce.torch.tensors import nothing
from p4reduce.torch.threads import settle_dropped

Wait = Callable[[float | None], None]


class WorkOutcome:
    """How a collective ends. The first caller that asks finds out, once.

    Args:
        wait: waits for the end, with a timeout or without. It raises the caller's error.
            With seconds, `pending` says whether it was only too early.
        finish: what has to be done then, such as writing to tensors of another layout.
        pending: whether it is still under way.
        waits: whether `pending` only finds out by `wait`.

    Attributes:
        keeper: has this outcome until it is settled; None: nobody has to.
    """

    __slots__ = (
        "_error",
        "_finish",
        "_lock",
        "_over",
        "_pending",
        "_wait",
        "_waiter",
        "_waits",
        "keeper",
    )

    def __init__(
        self,
        wait: Wait,
        finish: Callable[[], None],
        pending: Callable[[], bool],
        *,
        waits: bool = False,
    ) -> None:
        self._waits = waits
        self._wait = wait
        self._finish = finish
        self._pending = pending
        self._lock = threading.Lock()
        self._over = False
        self._error: BaseException | None = None
        self._waiter: threading.Thread | None = None
        self.keeper: set[WorkOutcome] | None = None

    def is_settled(self) -> bool:
        """Whether somebody has found out already how it ended."""
        return self._over

    def poll(self) -> bool:
        """Whether it has ended, with or without an error. Does not wait.

        If so, the results have been written.
        """
        if self._over:
            return True
        if self._waits:
            self._wait_beside()
        elif not self._pending() and self._lock.acquire(blocking=False):
            try:
                if not self._over:
                    self._run(None)
            finally:
                self._lock.release()
        return self._over

    def settle(self, timeout: float | None = None) -> None:
        """Wait, and raise the error that ended it.

        Args:
            timeout: seconds; None: as long as the collective may take.
        """
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            assert timeout is not None, "without one it waits for the lock"
            raise dist.DistBackendError(
                f"p4reduce: not complete after {three_digits(timeout)} s; it continues"
            )
        try:
            if not self._over:
                self._run(timeout)
            if self._error is not None:
                raise self._error
        finally:
            self._lock.release()

    def settle_quietly(self) -> None:
        """Wait for the end. Its error is for those who ask."""
        with suppress(BaseException):
            self.settle()

    def _wait_beside(self) -> None:
        """Let a thread wait, as nothing else finds out whether it has ended."""
        if self._waiter is None:
            self._waiter = new_thread(self.settle_quietly, "p4reduce-waiter", daemon=False)
            self._waiter.start()

    def _run(self, timeout: float | None) -> None:
        try:
            self._wait(timeout)
            self._finish()
        except BaseException as error:
            if timeout is not None and self._pending():
                raise
            self._error = without_frames(error)
        self._over = True
        if self.keeper is not None:
            self.keeper.discard(self)
        # What they hold, tensors above all, is not needed any more.
        self._wait, self._finish, self._pending = _no_wait, nothing, _not_pending


def unsettled(outcomes: Iterable[WorkOutcome]) -> list[WorkOutcome]:
    """Return those that have not ended. The results of all others are written."""
    return [outcome for outcome in outcomes if not outcome.poll()]


def _no_wait(timeout: float | None) -> None:
    """It is over."""


def _not_pending() -> bool:
    return False


@dataclass(frozen=True)
class Later:
    """A result that is known when a collective has ended.

    Attributes:
        value: returns it.
    """

    value: Callable[[], Any]


@methods_eagerly
class OutcomeWork(dist.Work):
    """A collective in flight.

    Args:
        outcome: of the collective.
        tensors: its result, as the future gives it, or `Later`.
    """

    def __init__(self, outcome: WorkOutcome, tensors: Any) -> None:
        super().__init__()
        self._outcome = outcome
        self._tensors = tensors
        self._future: torch.futures.Future[Any] | None = None

    def __del__(self) -> None:
        if not self._outcome.is_settled():
            settle_dropped(self._outcome.settle_quietly)

    @classmethod
    def of_all(
        cls,
        works: Sequence[OutcomeWork],
        tensors: Any,
        finish: Callable[[], None] = nothing,
    ) -> OutcomeWork:
        """Return a work that ends when all of some have ended, and a function was called then."""

        def wait(timeout: float | None) -> None:
            for work in works:
                work._outcome.settle(timeout)

        def pending() -> bool:
            return bool(unsettled(work.outcome for work in works))

        return cls(WorkOutcome(wait, finish, pending), tensors)

    @property
    def outcome(self) -> WorkOutcome:
        """How it ends."""
        return self._outcome

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. Raises DistBackendError or DistNetworkError.

        Args:
            timeout: to wait here; None or 0: as long as the collective may take.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._outcome.settle(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """Wait for the end: the memory is the host's, so no stream has to be joined."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the end, as `synchronize`."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors, which is complete when they are written."""
        if self._future is None:
            self._future = self._promise(_settler(self._outcome, self._tensors))
        return self._future

    def _promise(self, settle: Callable[[], Any]) -> torch.futures.Future[Any]:
        return promise(settle)

    def is_completed(self) -> bool:
        """Whether it has ended, with or without an error. If so, the results are written."""
        return self._outcome.poll()

    def is_success(self) -> bool:
        """Whether it has succeeded; False while it runs."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Its error; None while it runs, and where there is none."""
        if self.is_completed():
            try:
                self._outcome.settle()
            except Exception as error:
                return error
        return None

    def result(self) -> Any:
        """Wait for the end, as `wait`, and return the tensors."""
        self.wait()
        return _settler(self._outcome, self._tensors)()


class StartedWork:
    """A work, with the methods of a handle.

    Args:
        work: of a collective that is started.

    Attributes:
        work: the same.
    """

    __slots__ = ("work",)

    def __init__(self, work: OutcomeWork) -> None:
        self.work = work

    def done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self.work.outcome.poll()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end, and raise the error that ended it."""
        self.work.outcome.settle(timeout)


def _settler(outcome: WorkOutcome, tensors: Any) -> Callable[[], Any]:
    """Return a function that waits for the end and returns the result, without the work itself."""

    def settle() -> Any:
        outcome.settle()
        return tensors.value() if isinstance(tensors, Later) else tensors

    return settle


def _hand_over_works() -> None:
    """Give C++ works of its own where it keeps one: the half in Python may be collected before.

    What is left then waits for ever. DDP's reducer is the only one that keeps a work without its
    half in Python: `Join(divide_by_initial_world_size=False)` learns from it how many ranks have
    inputs.
    """
    original = dist.Reducer._set_forward_pass_work_handle
    if getattr(original, "is_p4reduce", False):
        return

    @functools.wraps(original)
    def set_work(self: Any, work: Any, use_static_world_size: bool) -> None:
        if isinstance(work, OutcomeWork) and not use_static_world_size:
            work = c10d._create_work_from_future(work.get_future())
        original(self, work, use_static_world_size)

    set_work.is_p4reduce = True  # type: ignore[attr-defined]
    dist.Reducer._set_forward_pass_work_handle = set_work


_hand_over_works()
