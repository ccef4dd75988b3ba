# SPDX-License-Identifier: Apache-2.0
"""A group's path through the switch: starts collectives, which end as `Work`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from p4reduce_common.polling import attempts
from torch.autograd import profiler
from torch.profiler import record_function

from p4reduce.communicator import Communicator
from p4reduce.environment import check_shapes
from p4reduce.errors import P4ReduceError, WorkerLostError
from p4reduce.handle import Handle
from p4reduce.torch.call_order import CallOrder, QueuedHandle
from p4reduce.torch.errors import as_torch_error
from p4reduce.torch.statistics import count_switch
from p4reduce.torch.tensors import nothing
from p4reduce.torch.work import OutcomeWork, WorkOutcome

T = TypeVar("T")

_POLL = 0.02  # seconds
_PROFILED = "p4reduce::"  # before the names that torch's profiler shows
_NOTHING = np.empty(0, np.int8)
_NOT_AWAITED = nullcontext()


def _recorded(what: str, run: Callable[[], T]) -> T:
    """Show a name in torch's profiler. Where none runs, that costs more than a small call."""
    if not (profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled()):
        return run()
    with record_function(f"{_PROFILED}{what}"):
        return run()


class Channel:
    """A communicator with torch's errors and deadlines.

    Args:
        comm: of the group's ranks, in the group's order.
        global_ranks: of the group's ranks; empty where they are the same numbers.
        timeout: seconds, of collectives that have none of their own; None: the communicator's.

    Attributes:
        order: of the communicator's calls.
        accelerated: whether torch has an accelerator on some rank; the same on all ranks.
    """

    def __init__(
        self, comm: Communicator, global_ranks: Sequence[int], timeout: float | None
    ) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.timeout = timeout
        self.order = CallOrder()
        self.accelerated = False
        self._agree_on_shapes = check_shapes(None)
        self._global_ranks = global_ranks

    def named(self, name: str | None, shapes: Iterable[Sequence[int]]) -> str | None:
        """Return the name of a call in which ranks compare more than the communicator does.

        Args:
            name: what else they compare.
            shapes: of this rank's tensors, which the communicator sees as rows of numbers.
        """
        if not self._agree_on_shapes:
            return name
        text = " and ".join(f"shape {tuple(shape)}" for shape in dict.fromkeys(shapes))
        return f"{name}, {text}" if name else text

    def start(
        self,
        collective: str,
        size: int,
        begin: Callable[[float | None], Handle[Any]],
        *,
        options: Any,
        result: Any,
        finish: Callable[[], None] = nothing,
        agrees: bool = False,
        waits: bool = False,
    ) -> OutcomeWork:
        """Start a collective.

        Args:
            collective: for the statistics.
            size: bytes of this rank's input.
            begin: calls one of the communicator's methods, with the timeout in seconds.
            options: torch's, of which the timeout counts; None: there are none.
            result: what the work's future gives.
            finish: done when the collective has ended well.
            agrees: whether `begin` waits for the other ranks first; it is called by a thread then.
            waits: with `agrees`: whether the caller waits at once, and needs no other thread.

        Raises:
            DistBackendError, DistNetworkError: the communicator is broken.
        """
        try:
            with self._awaiting(options):
                seconds = self.seconds(options)
                turn = self.order.take
                if agrees:
                    turn = self.order.now if waits else self.order.later
                handle = _recorded(collective, partial(turn, partial(begin, seconds)))
        except P4ReduceError as error:
            raise as_torch_error(error, self._global_ranks) from error
        count_switch(collective, size)
        wait = self.waiter(handle, collective)
        return OutcomeWork(WorkOutcome(wait, finish, lambda: not handle.done()), result)

    def _awaiting(self, options: Any) -> AbstractContextManager[None]:
        """What a call that is not `async_op` starts is waited for at once, in the same thread."""
        is_async = getattr(options, "asyncOp", True)
        return _NOT_AWAITED if is_async or self.order.is_inside() else self.comm.awaiting()

    def meeting(self, what: str, timeout: float | None) -> Handle[Any] | QueuedHandle:
        """Start a round in which all ranks say that they call the same thing.

        It sends a frame of 78 bytes. Ranks that call something else end it with an error that says
        so on all of them, and a rank that is lost with one that names it.
        """
        try:
            return self.order.take(lambda: self.meet(what, timeout))
        except P4ReduceError as error:
            raise as_torch_error(error, self._global_ranks) from error

    def meet(self, what: str, timeout: float | None) -> Handle[Any]:
        """As `meeting`, for a caller whose turn it is. Raises P4ReduceError."""
        return self.comm.allreduce_async(_NOTHING, name=what, timeout=timeout)

    def waiter(
        self, handle: Handle[Any] | QueuedHandle, what: str
    ) -> Callable[[float | None], None]:
        """Return a function that waits for a handle and raises torch's errors.

        Args:
            handle: of what was started.
            what: for torch's profiler, which shows "p4reduce::wait all_reduce".
        """
        shown = f"wait {what}"

        def wait(timeout: float | None) -> None:
            try:
                _recorded(shown, partial(handle.wait, timeout))
            except P4ReduceError as error:
                raise as_torch_error(error, self._global_ranks) from error

        return wait

    @property
    def lost(self) -> frozenset[int]:
        """The lost global ranks, as far as known."""
        error = self.comm.broken
        ranks = error.ranks if isinstance(error, WorkerLostError) else ()
        return frozenset(self._global_ranks[rank] if self._global_ranks else rank for rank in ranks)

    def broken(self) -> RuntimeError | None:
        """Return the error after which the communicator can do nothing more; None: it works."""
        error = self.comm.broken
        return None if error is None else as_torch_error(error, self._global_ranks)

    def raise_if_broken(self, within: float) -> None:
        """Wait that many seconds for news of a lost rank, and raise its error."""
        for _ in attempts(within, _POLL):
            if (error := self.broken()) is not None:
                raise error

    def translated(self, error: BaseException) -> BaseException:
        """Return this library's errors as torch's, and others as they are."""
        if isinstance(error, P4ReduceError):
            return as_torch_error(error, self._global_ranks)
        return error

    def seconds(self, options: Any) -> float | None:
        """Return a collective's timeout in seconds. torch's "unset" is negative."""
        given: float = -1.0 if options is None else options.timeout.total_seconds()
        return given if given > 0 else self.timeout
