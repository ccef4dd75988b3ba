# SPDX-License-Identifier: Apache-2.0
"""A rank's proxy: the thread that takes part in every sum, with or without the rank's numbers.

As the background threads of eager-SGD's partial collectives do (Li et al., PPoPP 2020). A sum is
two collectives of a communicator of its own, in which all ranks' proxies take part:

1. The negotiation: each says whether its rank has called. It alone decides the members
   (`policies`).
2. The sum: the members give their numbers, the others give zeros, which are not sent.

So the switch only sees sums of all ranks, and losses, trees and slots are handled as usual. A late
rank finds the sums that it missed in its proxy's queue.

When a rank is lost, the proxies form the job again without it. They agree on the first sum that
one of them lacks, pass it on, and continue with the remaining ranks.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

import numpy.typing as npt
from p4reduce_common.threads import new_thread

from p4reduce.errors import (
    ClosedError,
    InterruptedCallError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
)
from p4reduce.late.negotiation import (
    ABSENT,
    FULL,
    LEAVING,
    PRESENT,
    TICK,
    Negotiation,
    NegotiationRow,
    ticks,
)
from p4reduce.late.outcome import Total
from p4reduce.late.policies import Policy
from p4reduce.late.proxy_protocol import (
    Announcement,
    AwaitNegotiation,
    ProxyBroadcast,
    ProxyProtocol,
    ProxySum,
    Request,
    Steps,
)
from p4reduce.wire.rank_sets import describe_ranks

Array = npt.NDArray[Any]

_FIRST_LOOK = 0.01  # seconds from a sum to a negotiation without this rank's call, at least
_LATER = 1.02  # of the shortest time that it took before the last sums
_SUMS = 4  # that many: after a pause in training the one before it was no longer than usual
_SLOWER = 0.05  # of the time since the last sum, from one negotiation to the next
_LEAST_PAUSE, _MOST_PAUSE = 0.002, 0.2  # seconds between two negotiations
_LOOK = 1.0  # seconds; only bounds what is woken anyway
_END_TIMEOUT = 10.0  # seconds for the thread to end, besides the call that it is in


class ProxyGroup(Protocol):
    """What a proxy needs of its communicator, which nobody else uses."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def allreduce(self, array: Array, *, name: str, out: Array, precision: str | None) -> Array:
        """Return the sum over all ranks."""

    def broadcast(self, array: Array, root: int, name: str) -> Array:
        """Return the root's array."""

    def reform(self, *, timeout: float | None = None) -> ProxyGroup:
        """Return a communicator of the remaining ranks."""

    def close(self) -> None:
        """Leave when no other rank needs this one."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """With an error: leave at once."""


@dataclass(frozen=True)
class _RankCall:
    array: Array
    row: NegotiationRow
    at: float


class RankProxy:
    """Takes part in all sums of a communicator for this rank.

    Args:
        comm: used by the proxy alone, which closes it at the end.
        policy: decides the members of a sum.
        history: how many sums a rank can be behind before the others wait for it.
        timeout: seconds to form the job again after a loss.

    Attributes:
        original_rank: the first rank number of this rank, which it keeps after losses.
        original_size: the first number of ranks.
    """

    def __init__(self, comm: ProxyGroup, policy: Policy, history: int, timeout: float) -> None:
        self.original_rank, self.original_size = comm.rank, comm.size
        self._protocol = ProxyProtocol(
            self.original_rank, self.original_size, policy, self._keep, self._plan
        )
        self._comm = comm
        self._policy = policy
        self._history = history
        self._timeout = timeout
        self._queue: deque[Total] = deque()
        self._pending: _RankCall | None = None
        self._leaving = False
        self._over: P4ReduceError | None = None
        self._early: deque[float] = deque(maxlen=_SUMS)  # seconds; see `Policy.early`
        self._since = time.monotonic()  # the last sum
        self._next_negotiation = self._since + _FIRST_LOOK
        self._changed = threading.Condition()
        self._thread = new_thread(self._run, f"p4reduce-late-{self.original_rank}")
        self._thread.start()

    # -- For the caller's thread -------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """How many complete sums this rank has not taken."""
        return len(self._queue)

    @property
    def lost(self) -> tuple[int, ...]:
        """The lost ranks, by their first numbers."""
        return self._protocol.lost

    def take(self, *, if_summed: bool = False) -> Total | None:
        """Take the first sum that this rank has missed, or None.

        With `if_summed` it stays if it ended with an error.
        """
        with self._changed:
            if not self._queue or (if_summed and self._queue[0].error is not None):
                return None
            self._changed.notify_all()
            return self._queue.popleft()

    def call(self, array: Array, row: NegotiationRow, timeout: float) -> Total:
        """Return this rank's next sum. It contains the given numbers unless it was over before.

        Args:
            array: the numbers, C-contiguous; do not write to it meanwhile.
            row: describes the call; must be equal on all ranks.
            timeout: seconds.

        Raises:
            P4ReduceError: as for `Communicator.allreduce`; no further sums are possible.
        """
        end = time.monotonic() + timeout
        try:
            with self._changed:
                if not self._queue and self._over is None:
                    self._pending = _RankCall(array, row, time.monotonic())
                    self._changed.notify_all()
                while not self._queue and self._over is None:
                    left = end - time.monotonic()
                    if left <= 0:
                        raise self._timed_out(timeout)
                    self._changed.wait(min(left, _LOOK))
            total = self.take()
            if total is None:
                assert self._over is not None
                raise copy.copy(self._over)
            if not total.is_of(row):
                raise MismatchError(
                    f"this rank called another sum {total.number} than "
                    f"{describe_ranks(total.members)}, who did not wait for it; dtype, shape, op, "
                    "name, precision, deadline and at_least must be the same",
                    ranks=(self.original_rank,),
                )
            return total
        except P4ReduceError as error:
            self.abandon(error)
            raise
        except BaseException as error:
            self.abandon(
                InterruptedCallError(f"a sum was interrupted by {type(error).__name__} {error}")
            )
            raise

    def close(self) -> None:
        """Tell the others that this rank calls no more, and leave together. Idempotent."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
        self._thread.join(self._timeout + _END_TIMEOUT)
        if self._thread.is_alive():
            self.abandon(ClosedError("closed"))

    def abandon(self, error: P4ReduceError) -> None:
        """Leave at once. Further calls raise this error. Idempotent."""
        with self._changed:
            over, self._over = self._over, self._over or error
            self._changed.notify_all()
        if over is None:
            self._comm.__exit__(type(error), error, None)

    @property
    def present(self) -> int:
        """How many ranks took part in the latest negotiation; 0 before the first."""
        negotiation = self._protocol.last_negotiation
        return 0 if negotiation is None else len(negotiation.present)

    def _timed_out(self, seconds: float) -> P4ReduceTimeoutError:
        negotiation = self._protocol.last_negotiation
        text = f"sum {self._protocol.completed} is not complete after {seconds:g} s"
        if negotiation is None or not negotiation.present:
            return P4ReduceTimeoutError(
                f"{text}: the negotiation was not answered", seconds=seconds
            )
        if negotiation.full:
            behind = (
                f"{describe_ranks(negotiation.full)} did not take the last {self._history} sums"
            )
        return P4ReduceTimeoutError(
            f"{text}: {behind if negotiation.full else self._policy.missing(negotiation)}",
            missing=negotiation.full or negotiation.not_present,
            seconds=seconds,
        )

    # -- The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            steps = self._protocol.steps()
            with contextlib.suppress(StopIteration):
                request = next(steps)
                while True:
                    request = self._answered(steps, request)
        except P4ReduceError as error:
            self._end(error)
        except BaseException as error:
            self._end(P4ReduceError(f"the proxy thread ended with {type(error).__name__} {error}"))
            raise

    def _end(self, error: P4ReduceError) -> None:
        """All proxies end alike, so each closes as ever."""
        with self._changed:
            over, self._over = self._over, self._over or error
            self._changed.notify_all()
        if over is None:
            self._comm.close()

    def _answered(self, steps: Steps, request: Request) -> Request:
        """Do what is asked for; return what is asked for next."""
        try:
            reply = self._do(request)
        except P4ReduceError as error:
            return steps.throw(error)
        return steps.send(reply)

    def _do(self, request: Request) -> Any:
        if isinstance(request, AwaitNegotiation):
            return self._await_negotiation()
        if isinstance(request, ProxySum):
            return self._comm.allreduce(
                request.array, name=request.name, out=request.out, precision=request.precision
            )
        if isinstance(request, ProxyBroadcast):
            return self._comm.broadcast(request.array, request.root, request.name)
        comm = self._comm.reform(timeout=self._timeout)
        with self._changed:
            self._comm, over = comm, self._over
            self._next_negotiation = time.monotonic()
        if over is not None:
            comm.__exit__(type(over), over, None)
            raise copy.copy(over)
        return None

    def _await_negotiation(self) -> Announcement | None:
        """Return what to say in the next negotiation, once it is due; None: this is over."""
        with self._changed:
            while self._over is None:
                now = time.monotonic()
                if self._leaving:
                    return Announcement(NegotiationRow(LEAVING))
                if (pending := self._pending) is not None:
                    waited, came = ticks(now - pending.at), ticks(pending.at - self._since)
                    row = replace(pending.row, state=PRESENT, waited=waited, came=came)
                    return Announcement(row, pending.array)
                if now >= self._next_negotiation:
                    full = len(self._queue) >= self._history
                    return Announcement(NegotiationRow(FULL if full else ABSENT))
                self._changed.wait(min(self._next_negotiation - now, _LOOK))
            return None

    def _plan(self, negotiation: Negotiation, summed: bool) -> None:
        """Find out when the next negotiation is, also without this rank's call."""
        now = time.monotonic()
        if summed:
            self._early.append(self._policy.early(negotiation) * TICK)
            # The first one has what came before training as well.
            early = _LATER * min(self._early) if len(self._early) > 1 else 0.0
            self._next_negotiation = self._since + max(early, _FIRST_LOOK)
            return
        due = math.inf if negotiation.full else self._policy.due(negotiation)
        if not math.isfinite(due):
            due = min(max(_SLOWER * (now - self._since), _LEAST_PAUSE), _MOST_PAUSE)
        self._next_negotiation = now + due

    def _keep(self, total: Total) -> None:
        with self._changed:
            self._pending = None
            self._since = time.monotonic()
            if not self._leaving:
                self._queue.append(total)
            self._changed.notify_all()
