# SPDX-License-Identifier: Apache-2.0
"""A rank's attendant: the thread that takes part in every sum, with the rank's numbers or without.

As the background threads of eager-SGD's partial collectives do (Li et al., PPoPP 2020). A sum is
two collectives of a communicator of its own, in which all ranks' attendants take part:

1. The roll: each says whether its rank has called. From it alone follows who is in (`policies`).
2. The sum: whoever is in gives its numbers, the others give zeros, which are not sent.

So the switch sees nothing but sums with all ranks. What is lost on the way, a switch that is lost,
trees, and slots that go on only when all have a result are dealt with as ever. A rank that is late
finds the sums that it missed in its attendant's queue.

When a rank is lost, the attendants form the job anew without it, agree on which sum the first of
them lacks, hand it on, and go on with those who are left.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.errors import (
    ClosedError,
    InterruptedCallError,
    LaneOverflowError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
    WorkerLostError,
)
from p4reduce.late.outcome import Total, empty_head, overflow
from p4reduce.late.policies import Policy
from p4reduce.late.roll import ABSENT, LEAVING, PRESENT, TICK, Roll, Row, table_with, ticks
from p4reduce.wire.rank_sets import describe_ranks

Array = npt.NDArray[Any]

_FIRST_LOOK = (
    0.01  # seconds after a sum, at the earliest, that a rank which is not there calls the roll
)
_LATER = 1.02  # of the shortest time that it took before the last sums
_SUMS = 4  # so many: after a pause in training the one before it was no longer than usual
_SLOWER = 0.05  # of the time since the last sum, from one roll to the next
_LEAST_PAUSE, _MOST_PAUSE = 0.002, 0.2  # seconds between two rolls
_LOOK = 1.0  # seconds; only bounds what is woken anyway
_END_TIMEOUT = 10.0  # seconds for the thread to end, besides the call that it is in


class Group(Protocol):
    """What an attendant needs of a communicator, which it has for itself."""

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""

    @property
    def size(self) -> int:
        """How many there are."""

    def allreduce(
        self, array: Array, *, name: str | None, out: Array | None, precision: str | None
    ) -> Array:
        """The sum over all ranks."""

    def broadcast(self, array: Array, root: int, name: str | None) -> Array:
        """The root's array."""

    def reform(self, *, timeout: float | None = None) -> Group:
        """A communicator of those who are left."""

    def close(self) -> None:
        """Leave, when nobody needs this rank."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """With an error: leave at once."""


@dataclass(frozen=True)
class _Deposit:
    array: Array
    row: Row
    at: float


class Attendant:
    """Takes part in all sums of a communicator on behalf of this rank, from now on.

    Args:
        comm: for this alone, from now on; closed at the end.
        policy: says who is in a sum.
        history: how many sums a rank can be behind; the others then wait for it.
        timeout: seconds to form the job anew after a loss.

    Attributes:
        seat: the rank that this one had at first, which it keeps after losses.
        seats: how many there were at first.
    """

    def __init__(self, comm: Group, policy: Policy, history: int, timeout: float) -> None:
        self.seat, self.seats = comm.rank, comm.size
        self._comm = comm
        self._policy = policy
        self._history = history
        self._timeout = timeout
        self._alive: tuple[int, ...] = tuple(range(comm.size))
        self._completed = 0
        self._kept: Total | None = None  # the last one, which another rank may lack after a loss
        self._queue: deque[Total] = deque()
        self._deposit: _Deposit | None = None
        self._last_roll: Roll | None = None
        self._leaving = False
        self._over: P4ReduceError | None = None
        self._early: deque[float] = deque(maxlen=_SUMS)  # seconds; see `Policy.early`
        self._since = time.monotonic()  # the last sum
        self._next_roll = self._since + _FIRST_LOOK
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"p4reduce-late-{self.seat}", daemon=True
        )
        self._thread.start()

    # -- For the caller's thread -------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """How many sums are over that this rank has not taken."""
        return len(self._queue)

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that were lost, as they were numbered at first."""
        return tuple(seat for seat in range(self.seats) if seat not in self._alive)

    def take(self) -> Total | None:
        """Return the first sum that this rank has missed, if there is one."""
        with self._changed:
            if not self._queue:
                return None
            self._changed.notify_all()
            return self._queue.popleft()

    def call(self, array: Array, row: Row, timeout: float) -> Total:
        """Return this rank's next sum: with these numbers, unless it was over before.

        Args:
            array: the numbers, C-contiguous; not to be written to meanwhile.
            row: what the others have to agree with.
            timeout: seconds.

        Raises:
            P4ReduceError: as `Communicator.allreduce`; nothing can be summed any more then.
        """
        end = time.monotonic() + timeout
        try:
            with self._changed:
                if not self._queue and self._over is None:
                    self._deposit = _Deposit(array, row, time.monotonic())
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
                    "name, precision, deadline and at_least have to be the same",
                    ranks=(self.seat,),
                )
            return total
        except P4ReduceError as error:
            self.abandon(error)
            raise
        except BaseException as error:
            self.abandon(InterruptedCallError(f"a sum was left by {type(error).__name__} {error}"))
            raise

    def close(self) -> None:
        """Tell the others that this rank calls no more, and leave with them. Idempotent."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
        self._thread.join(self._timeout + _END_TIMEOUT)
        if self._thread.is_alive():
            self.abandon(ClosedError("closed"))

    def abandon(self, error: P4ReduceError) -> None:
        """Leave at once; each further call raises this error. Idempotent."""
        with self._changed:
            over, self._over = self._over, self._over or error
            self._changed.notify_all()
        if over is None:
            self._comm.__exit__(type(error), error, None)

    def _timed_out(self, seconds: float) -> P4ReduceTimeoutError:
        text = f"sum {self._completed} is not complete after {seconds:g} s"
        if self._last_roll is None or not self._last_roll.present:
            return P4ReduceTimeoutError(f"{text}: the roll was not answered", seconds=seconds)
        return P4ReduceTimeoutError(
            f"{text}: {self._policy.missing(self._last_roll)}",
            missing=self._last_roll.not_present,
            seconds=seconds,
        )

    # -- The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except P4ReduceError as error:
            self._end(error)
        except BaseException as error:
            self._end(P4ReduceError(f"the attendant ended by {type(error).__name__} {error}"))
            raise

    def _end(self, error: P4ReduceError) -> None:
        """All attendants end alike, so each closes as ever."""
        with self._changed:
            over, self._over = self._over, self._over or error
            self._changed.notify_all()
        if over is None:
            self._comm.close()

    def _turn(self) -> bool:
        """Call the roll, and sum if that says so. Returns False when all is over."""
        row, deposit = self._await_turn()
        if row is None:
            return False
        try:
            mine = table_with(row, self.seat, self.seats)
            name = f"roll before sum {self._completed}"
            table = self._comm.allreduce(mine, name=name, out=mine, precision=None)
        except WorkerLostError:
            self._recover()
            return True
        roll = self._last_roll = Roll(table, self._alive)
        self._policy.check(self.lost, roll)
        members = self._policy.members(roll)
        if members is not None:
            try:
                total = self._sum(roll, members, deposit)
            except WorkerLostError:
                self._recover()
                return True
            self._keep(total)
            self._early.append(self._policy.early(roll) * TICK)
            # The first one has what came before training as well.
            early = _LATER * min(self._early) if len(self._early) > 1 else 0.0
            self._next_roll = self._since + max(early, _FIRST_LOOK)
        elif roll.leaving:
            raise _left(roll.leaving)
        else:
            self._pause(roll)
        return True

    def _await_turn(self) -> tuple[Row | None, _Deposit | None]:
        """Return what to say in the next roll, when it is time for it; None: this is over."""
        with self._changed:
            while self._over is None:
                now = time.monotonic()
                if self._leaving:
                    return Row(LEAVING), None
                if len(self._queue) >= self._history:
                    self._changed.wait(_LOOK)
                elif (deposit := self._deposit) is not None:
                    waited, came = ticks(now - deposit.at), ticks(deposit.at - self._since)
                    return replace(deposit.row, state=PRESENT, waited=waited, came=came), deposit
                elif now >= self._next_roll:
                    return Row(ABSENT), None
                else:
                    self._changed.wait(min(self._next_roll - now, _LOOK))
            return None, None

    def _pause(self, roll: Roll) -> None:
        """Nothing follows from a roll: there will be another one, also without this rank's call."""
        now = time.monotonic()
        due = self._policy.due(roll)
        if not math.isfinite(due):
            due = min(max(_SLOWER * (now - self._since), _LEAST_PAUSE), _MOST_PAUSE)
        self._next_roll = now + due

    def _sum(self, roll: Roll, members: tuple[int, ...], deposit: _Deposit | None) -> Total:
        number, call = self._completed, roll.call()
        if self.seat in members:
            assert deposit is not None
            mine = deposit.array
        else:
            mine = np.zeros(call.shape, call.kind)
        total = np.empty(call.shape, call.kind)
        error: P4ReduceError | None = None
        name = f"sum {number} of {describe_ranks(members)}"
        try:
            self._comm.allreduce(mine, name=name, out=total, precision=call.precision)
        except LaneOverflowError:
            error = overflow(number)
        return Total(number, total, roll.present, members, call.digest, error)

    def _keep(self, total: Total) -> None:
        with self._changed:
            self._kept = total
            self._completed = total.number + 1
            self._deposit = None
            self._since = time.monotonic()
            if not self._leaving:
                self._queue.append(total)
            self._changed.notify_all()

    # -- After a loss ------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Go on with those who are left. A sum that only some of them have is handed on."""
        while True:
            try:
                comm = self._comm.reform(timeout=self._timeout)
                with self._changed:
                    self._comm = comm
                    over = self._over
                if over is not None:
                    comm.__exit__(type(over), over, None)
                    raise copy.copy(over)
                self._meet()
                break
            except WorkerLostError:
                continue  # another one; each of them is lost once
        self._policy.check(self.lost, None)
        self._next_roll = time.monotonic()

    def _meet(self) -> None:
        mine = np.zeros((self.seats, 2), np.int32)
        mine[self.seat] = 1, self._completed
        name = "who is left"
        table = self._comm.allreduce(mine, name=name, out=None, precision=None)
        alive = tuple(np.flatnonzero(table[:, 0]).tolist())
        completed = table[list(alive), 1].tolist()
        if min(completed) < max(completed):
            self._hand_on(completed.index(max(completed)), max(completed))
        self._alive = alive

    def _hand_on(self, root: int, completed: int) -> None:
        """Let one who has the last sum give it to those who lack it.

        No rank lacks more than that: all took part in the roll before it.
        """
        has = self._completed == completed
        assert has or self._completed == completed - 1
        assert not has or self._kept is not None
        kept = self._kept
        head = kept.head(self.seats) if has and kept is not None else empty_head(self.seats)
        head = self._comm.broadcast(head, root, "the sum that a rank lacks")
        total = kept if has and kept is not None else Total.of_head(head)
        numbers = self._comm.broadcast(total.total, root, "its numbers")
        if not has:
            self._keep(replace(total, total=numbers))


def _left(ranks: Sequence[int]) -> WorkerLostError:
    return WorkerLostError(f"{describe_ranks(ranks)} left, and calls no more sums", ranks=ranks)
