# SPDX-License-Identifier: Apache-2.0
"""What an attendant does, step by step, without a thread, a communicator or a clock.

A generator yields each action and gets its result. Its driver is a thread (`attendant`), or the
model, which visits all orders of events (model/p4reduce_model/late.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import LaneOverflowError, P4ReduceError, WorkerLostError
from p4reduce.late.outcome import Total, empty_head, overflow
from p4reduce.late.policies import Policy
from p4reduce.late.roll import Roll, Row, table_with
from p4reduce.wire.rank_sets import describe_ranks

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Turn:
    """Wait until it is time for the roll. The reply is a `Said`, or None when all is over."""


@dataclass(frozen=True)
class Said:
    """A rank's entry in a roll, and its numbers if it has called."""

    row: Row
    array: Array | None = None


@dataclass(frozen=True)
class Sum:
    """An all-reduce of all attendants. The reply is `out`."""

    array: Array
    name: str
    out: Array
    precision: str | None = None


@dataclass(frozen=True)
class Broadcast:
    """One rank's array for all ranks. The reply is that array."""

    array: Array
    root: int
    name: str


@dataclass(frozen=True)
class Reform:
    """Form the job again with the remaining ranks. The reply is None."""


Request = Turn | Sum | Broadcast | Reform
Steps = Generator[Request, Any, None]


class Duties:
    """The attendant of one rank.

    The driver throws in `WorkerLostError` if another rank is lost during an action.

    Args:
        seat: the first rank number of this rank.
        seats: the first number of ranks.
        policy: decides the members of a sum.
        keep: called with each sum.
        plan: called after each roll, with it and whether a sum followed.

    Attributes:
        seat, seats: as given.
        alive: the remaining seats.
        completed: how many sums are complete.
        kept: the last sum, which another rank may lack after a loss.
        last_roll: the latest roll.
    """

    def __init__(
        self,
        seat: int,
        seats: int,
        policy: Policy,
        keep: Callable[[Total], None],
        plan: Callable[[Roll, bool], None],
    ) -> None:
        self.seat, self.seats = seat, seats
        self.alive: tuple[int, ...] = tuple(range(seats))
        self.completed = 0
        self.kept: Total | None = None
        self.last_roll: Roll | None = None
        self._policy = policy
        self._keep_it = keep
        self._plan = plan

    @property
    def lost(self) -> tuple[int, ...]:
        """The lost ranks, by their first numbers."""
        return tuple(seat for seat in range(self.seats) if seat not in self.alive)

    def steps(self) -> Steps:
        """Yield actions until all is over.

        Raises:
            P4ReduceError: no further sums are possible; the same on all ranks.
        """
        while True:
            said: Said | None = yield Turn()
            if said is None:
                return
            try:
                yield from self._turn(said)
            except _LossError:
                yield from self._recover()

    def _turn(self, said: Said) -> Steps:
        """Call the roll, and sum if that says so."""
        mine = table_with(said.row, self.seat, self.seats)
        table = yield from _asked(Sum(mine, f"roll before sum {self.completed}", mine))
        roll = self.last_roll = Roll(table, self.alive)
        self._policy.check(self.lost, roll)
        members = None if roll.full else self._policy.members(roll)
        if members is not None:
            yield from self.sum_up(roll, members, said.array)
        elif roll.leaving:
            raise WorkerLostError(
                f"{describe_ranks(roll.leaving)} left, and calls no more sums", ranks=roll.leaving
            )
        self._plan(roll, members is not None)

    def sum_up(self, roll: Roll, members: tuple[int, ...], array: Array | None) -> Steps:
        """Sum the numbers of a roll's members."""
        call = roll.call()
        if self.seat not in members:
            array = np.zeros(call.shape, call.summed_as)
        assert array is not None
        total, error = np.empty(call.shape, call.summed_as), None
        name = f"sum {self.completed} of {describe_ranks(members)}"
        try:
            total = yield from _asked(Sum(array, name, total, call.precision))
        except LaneOverflowError:
            error = overflow(self.completed)
        self._keep(
            Total(self.completed, total, call.kind, roll.present, members, call.digest, error)
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
                yield from _asked(Reform())
                yield from self._meet()
            except _LossError:
                continue  # another one; each of them is lost once
            break
        self._policy.check(self.lost, None)

    def _meet(self) -> Steps:
        mine = np.zeros((self.seats, 2), np.int32)
        mine[self.seat] = 1, self.completed
        table = yield from _asked(Sum(mine, "who is left", mine))
        alive = tuple(np.flatnonzero(table[:, 0]).tolist())
        completed = table[list(alive), 1].tolist()
        if min(completed) < max(completed):
            yield from self.hand_on(completed.index(max(completed)), max(completed))
        self.alive = alive

    def hand_on(self, root: int, completed: int) -> Steps:
        """Let a rank that has the last sum give it to the ranks that lack it.

        No rank lacks more than one sum, because all took part in the roll before it.
        """
        has = self.completed == completed
        kept = self.kept if has else None
        assert (kept is not None) == has
        assert has or self.completed == completed - 1
        head = empty_head(self.seats) if kept is None else kept.head(self.seats)
        head = yield from _asked(Broadcast(head, root, "the sum that a rank lacks"))
        total = Total.of_head(head) if kept is None else kept
        numbers = yield from _asked(Broadcast(total.total, root, "its numbers"))
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
