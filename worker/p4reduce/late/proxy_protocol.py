# SPDX-License-Identifier: Apache-2.0
"""What a proxy does, step by step, without a thread, a communicator or a clock.

A generator yields each action and gets its result. Its driver is a thread (`rank_proxy`), or the
model, which visits all orders of events (model/p4reduce_model/late.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import LaneOverflowError, P4ReduceError, WorkerLostError
from p4reduce.late.negotiation import Negotiation, NegotiationRow, table_with
from p4reduce.late.outcome import Total, empty_head, overflow
from p4reduce.late.policies import Policy
from p4reduce.wire.rank_sets import describe_ranks

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AwaitNegotiation:
    """Wait until it is time to negotiate. The reply is an `Announcement`; None: all is over."""


@dataclass(frozen=True)
class Announcement:
    """A rank's entry in a negotiation, and its numbers if it has called."""

    row: NegotiationRow
    array: Array | None = None


@dataclass(frozen=True)
class ProxySum:
    """An all-reduce of all proxies. The reply is `out`."""

    array: Array
    name: str
    out: Array
    precision: str | None = None


@dataclass(frozen=True)
class ProxyBroadcast:
    """One rank's array for all ranks. The reply is that array."""

    array: Array
    root: int
    name: str


@dataclass(frozen=True)
class ProxyReform:
    """Form the job again with the remaining ranks. The reply is None."""


Request = AwaitNegotiation | ProxySum | ProxyBroadcast | ProxyReform
Steps = Generator[Request, Any, None]


class ProxyProtocol:
    """The proxy of one rank.

    The driver throws in `WorkerLostError` if another rank is lost during an action.

    Args:
        original_rank: the first rank number of this rank.
        original_size: the first number of ranks.
        policy: decides the members of a sum.
        keep: called with each sum.
        plan: called after each negotiation, with it and whether a sum followed.

    Attributes:
        original_rank, original_size: as given.
        alive: the remaining ranks.
        completed: how many sums are complete.
        kept: the last sum, which another rank may lack after a loss.
        last_negotiation: the latest negotiation.
    """

    def __init__(
        self,
        original_rank: int,
        original_size: int,
        policy: Policy,
        keep: Callable[[Total], None],
        plan: Callable[[Negotiation, bool], None],
    ) -> None:
        self.original_rank, self.original_size = original_rank, original_size
        self.alive: tuple[int, ...] = tuple(range(original_size))
        self.completed = 0
        self.kept: Total | None = None
        self.last_negotiation: Negotiation | None = None
        self._policy = policy
        self._keep_it = keep
        self._plan = plan

    @property
    def lost(self) -> tuple[int, ...]:
        """The lost ranks, by their first numbers."""
        return tuple(
            original_rank
            for original_rank in range(self.original_size)
            if original_rank not in self.alive
        )

    def steps(self) -> Steps:
        """Yield actions until all is over.

        Raises:
            P4ReduceError: no further sums are possible; the same on all ranks.
        """
        while True:
            announcement: Announcement | None = yield AwaitNegotiation()
            if announcement is None:
                return
            try:
                yield from self._negotiate(announcement)
            except _LossError:
                yield from self._recover()

    def _negotiate(self, announcement: Announcement) -> Steps:
        """Negotiate, and sum if that says so."""
        mine = table_with(announcement.row, self.original_rank, self.original_size)
        table = yield from _asked(ProxySum(mine, f"negotiation before sum {self.completed}", mine))
        negotiation = self.last_negotiation = Negotiation(table, self.alive)
        self._policy.check(self.lost, negotiation)
        members = None if negotiation.full else self._policy.members(negotiation)
        if members is not None:
            yield from self.sum_up(negotiation, members, announcement.array)
        elif negotiation.leaving:
            raise WorkerLostError(
                f"{describe_ranks(negotiation.leaving)} left, and calls no more sums",
                ranks=negotiation.leaving,
            )
        self._plan(negotiation, members is not None)

    def sum_up(
        self, negotiation: Negotiation, members: tuple[int, ...], array: Array | None
    ) -> Steps:
        """Sum the numbers of a negotiation's members."""
        call = negotiation.call()
        if self.original_rank not in members:
            array = np.zeros(call.shape, call.summed_as)
        assert array is not None
        total, error = np.empty(call.shape, call.summed_as), None
        name = f"sum {self.completed} of {describe_ranks(members)}"
        try:
            total = yield from _asked(ProxySum(array, name, total, call.precision))
        except LaneOverflowError:
            error = overflow(self.completed)
        self._keep(
            Total(
                self.completed, total, call.kind, negotiation.present, members, call.digest, error
            )
        )

    def _keep(self, total: Total) -> None:
        self.kept = total
        self.completed = total.number + 1
        self._keep_it(total)

    # -- After a loss ------------------------------------------------------------------------------

    def _recover(self) -> Steps:
        """Continue with the remaining ranks. A sum that only some of them have is handed on."""
        while True:
            try:
                yield from _asked(ProxyReform())
                yield from self._meet()
            except _LossError:
                continue  # another one; each of them is lost once
            break
        self._policy.check(self.lost, None)

    def _meet(self) -> Steps:
        mine = np.zeros((self.original_size, 2), np.int32)
        mine[self.original_rank] = 1, self.completed
        table = yield from _asked(ProxySum(mine, "who is left", mine))
        alive = tuple(np.flatnonzero(table[:, 0]).tolist())
        completed = table[list(alive), 1].tolist()
        if min(completed) < max(completed):
            yield from self.hand_on(completed.index(max(completed)), max(completed))
        self.alive = alive

    def hand_on(self, root: int, completed: int) -> Steps:
        """Let a rank that has the last sum give it to the ranks that lack it.

        No rank lacks more than one sum, because all took part in the negotiation before it.
        """
        has = self.completed == completed
        kept = self.kept if has else None
        assert (kept is not None) == has
        assert has or self.completed == completed - 1
        head = empty_head(self.original_size) if kept is None else kept.head(self.original_size)
        head = yield from _asked(ProxyBroadcast(head, root, "the sum that a rank lacks"))
        total = Total.of_head(head) if kept is None else kept
        numbers = yield from _asked(ProxyBroadcast(total.total, root, "its numbers"))
        if not has:
            self._keep(replace(total, total=numbers))


class _LossError(P4ReduceError):
    """Another rank was lost in something that was asked for: not what a policy finds."""


def _asked(request: Request) -> Generator[Request, Any, Any]:
    """Make a call, and distinguish the loss of a rank from other errors."""
    try:
        return (yield request)
    except WorkerLostError as error:
        raise _LossError(str(error)) from error
