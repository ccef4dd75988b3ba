# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late or lost: every order of what attendants, callers and losses can do.

It runs the attendants' real code, `p4reduce.late.duties` with its policies. A collective of all
attendants is one step here. It is complete when all that are left have given their part. Each gets
its result, or learns of a loss, at any later time. The other cases check with frames that
collectives behave so. Callers call at any time, and a roll is called without them at any time. A
rank dies at any time, before or after it has given its part of a collective.

Generators cannot be copied: what has happened is done again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from p4reduce.errors import P4ReduceError, WorkerLostError
from p4reduce.late.duties import Broadcast, Duties, Reform, Request, Said, Steps, Sum, Turn
from p4reduce.late.outcome import Total
from p4reduce.late.policies import AtLeast, OneOfEachGroup, Policy
from p4reduce.late.roll import ABSENT, FULL, LEAVING, PRESENT, Roll, Row
from p4reduce.late.sums import row_of

from p4reduce_model.found import Found, Violation, explore_by_doing

Result = tuple[bytes, tuple[int, ...], tuple[int, ...]]  # numbers, members, present


class Event(NamedTuple):
    """What a rank does, or what befalls it."""

    what: str
    seat: int

    def __str__(self) -> str:
        return f"rank {self.seat} {self.what}"


_ROUNDS = 400  # of all that can happen, within which all must be over
_CALL, _TAKE, _LEAVE, _TURN, _GET, _LOST, _FORM = (
    "calls",
    "takes",
    "leaves",
    "joins",
    "gets",
    "hears of a loss",
    "is formed anew",
)
_DIES, _DIES_GIVING = "dies", "dies, its part given"
_FAIR = (_TAKE, _CALL, _LEAVE, _GET, _LOST, _FORM, _TURN)


@dataclass(frozen=True)
class LateCase:
    """A case to be explored.

    Attributes:
        name: of the case.
        ranks: how many there are.
        groups: who computes the same; empty: all differ.
        at_least: how many ranks are enough where all differ.
        sums: how many each caller calls.
        deaths: how many ranks die at most.
        idle: ranks whose callers do nothing at all.
        history: how many sums a rank can be behind.
        duties: what attendants do; anything but the real class is for planting faults.
        policy: says who is in, in place of what follows from the rest, to plant faults.
    """

    name: str
    ranks: int
    groups: tuple[tuple[int, ...], ...] = ()
    at_least: int = 1
    sums: int = 2
    deaths: int = 0
    idle: frozenset[int] = frozenset()
    history: int = 2
    duties: type[Duties] = Duties
    policy: Callable[[], Policy] | None = None

    def new_policy(self) -> Policy:
        """Return what says who is in."""
        if self.policy is not None:
            return self.policy()
        return OneOfEachGroup(self.groups) if self.groups else AtLeast(self.ranks)

    def bearable(self, gone: set[int]) -> bool:
        """Whether sums still come about without these ranks."""
        if self.groups:
            return not any(gone.issuperset(group) for group in self.groups)
        return self.ranks - len(gone) >= self.at_least

    def numbers(self, rank: int, number: int) -> np.ndarray:
        """What a caller gives to a sum: a lane of its own is 1."""
        array = np.zeros((self.sums, self.ranks), np.int32)
        array[number, rank] = 1
        return array

    def explore(self, limit: int = 1_000_000) -> Found[Event]:
        """Visit all states of a case and check them, shortest ways first."""
        found, good = Found[Event](), set[Hashable]()
        explore_by_doing(
            found, lambda: _World(self), limit, lambda world: _check_progress(world, good)
        )
        return found


@dataclass
class _Rank:
    duties: Duties
    steps: Steps
    request: Request | None = None  # None: its attendant has ended
    error: P4ReduceError | None = None
    queue: list[Total] = field(default_factory=list)
    deposit: np.ndarray | None = None
    taken: int = 0
    leaving: bool = False
    dead: bool = False
    at: int = 0  # how many collectives of this life it has got

    @property
    def gone(self) -> bool:
        return self.dead or self.request is None


class _World:
    """A case, somewhere in its course."""

    def __init__(self, case: LateCase) -> None:
        self.case = case
        self.deaths = 0
        self.results: dict[tuple[int, int], Result] = {}  # by number and rank
        self.life = list(range(case.ranks))
        self.log: list[dict[int, Sum | Broadcast]] = [{}]
        self.ranks = [self._rank(seat) for seat in range(case.ranks)]
        for rank in self.ranks:
            rank.request = next(rank.steps)

    def _rank(self, seat: int) -> _Rank:
        keep: Callable[[Total], None] = lambda total: self._keep(seat, total)  # noqa: E731
        policy = self.case.new_policy()
        duties = self.case.duties(seat, self.case.ranks, policy, keep, _no_plan)
        return _Rank(duties, duties.steps())

    # -- What can happen ---------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """All that can happen."""
        seats = range(self.case.ranks)
        found = [Event(what, seat) for seat in seats for what in self._events_of(seat)]
        waiting = [rank.request for rank in self.ranks if not rank.gone]
        if waiting and all(isinstance(request, Reform) for request in waiting):
            found.append(Event(_FORM, 0))
        return found

    def _events_of(self, seat: int) -> list[str]:
        rank, found = self.ranks[seat], []
        if rank.dead:
            return []
        if seat not in self.case.idle:
            if rank.queue:
                found.append(_TAKE)
            elif rank.deposit is None and rank.taken < self.case.sums and not rank.gone:
                found.append(_CALL)
            if rank.taken == self.case.sums and not rank.leaving:
                found.append(_LEAVE)
        if rank.gone:
            return found
        if isinstance(rank.request, Turn):
            found.append(_TURN)
        elif not isinstance(rank.request, Reform):
            if len(self.log[rank.at]) == len(self.life):
                found.append(_GET)
            if any(self.ranks[other].gone for other in self.life):
                found.append(_LOST)
        if self.deaths < self.case.deaths:
            found.append(_DIES)
            if isinstance(rank.request, Sum | Broadcast):
                found.append(_DIES_GIVING)
        return found

    def do(self, event: Event) -> None:
        """Let it happen. Raises Violation."""
        what, seat = event
        rank = self.ranks[seat]
        if what == _CALL:
            rank.deposit = self.case.numbers(seat, rank.taken)
        elif what == _TAKE:
            self._take(rank)
        elif what == _LEAVE:
            rank.leaving = True
        elif what in (_DIES, _DIES_GIVING):
            self.deaths += 1
            rank.dead = True
            complete = len(self.log[rank.at]) == len(self.life)
            if what == _DIES and not complete:
                self.log[rank.at].pop(seat, None)
        elif what == _TURN:
            self._go_on(seat, lambda: rank.steps.send(self._said(rank)))
        elif what == _GET:
            result = self._result(self.log[rank.at], seat)
            rank.at += 1
            if len(self.log) == rank.at:
                self.log.append({})
            self._go_on(seat, lambda: rank.steps.send(result))
        elif what == _LOST:
            self._go_on(seat, lambda: rank.steps.throw(WorkerLostError("a rank is gone")))
        else:
            self.life = [seat for seat, one in enumerate(self.ranks) if not one.gone]
            self.log = [{}]
            for seat in self.life:
                self.ranks[seat].at = 0
            for seat in self.life:
                self._go_on(seat, functools.partial(self.ranks[seat].steps.send, None))

    def _said(self, rank: _Rank) -> Said:
        if rank.leaving:
            return Said(Row(LEAVING))
        if rank.deposit is None:
            return Said(Row(FULL if len(rank.queue) >= self.case.history else ABSENT))
        row = row_of(rank.deposit, None, (), at_least=self.case.at_least)
        return Said(replace(row, state=PRESENT), rank.deposit)

    def _go_on(self, seat: int, step: Callable[[], Request]) -> None:
        rank = self.ranks[seat]
        try:
            rank.request = step()
        except StopIteration:
            rank.request = None
        except P4ReduceError as error:
            rank.request, rank.error = None, error
        if rank.error is not None:
            self._check_error(seat, rank.error)
        if isinstance(rank.request, Sum | Broadcast):
            self._give(seat, rank.request)

    def _give(self, seat: int, request: Sum | Broadcast) -> None:
        parts = self.log[self.ranks[seat].at]
        for other, before in parts.items():
            if (before.name, before.array.shape) != (request.name, request.array.shape):
                raise Violation(
                    "the same calls",
                    f"rank {seat} calls {request.name!r} with {request.array.shape}, and rank "
                    f"{other} {before.name!r} with {before.array.shape}",
                )
        parts[seat] = replace(request, array=request.array.copy())

    def _result(self, parts: dict[int, Sum | Broadcast], seat: int) -> np.ndarray:
        mine = parts[seat]
        given = parts.values() if isinstance(mine, Sum) else [parts[self.life[mine.root]]]
        total: np.ndarray = np.zeros_like(mine.array)
        for part in given:
            total += part.array
        return total

    # -- What has to hold --------------------------------------------------------------------------

    def _keep(self, seat: int, total: Total) -> None:
        rank = self.ranks[seat]
        rank.deposit = None
        if not rank.leaving:
            rank.queue.append(total)
        if len(rank.queue) > self.case.history:
            raise Violation("memory", f"rank {seat} is {len(rank.queue)} sums behind")
        said = (total.total.tobytes(), total.members, total.present)
        self.results[total.number, seat] = said
        for other, one in enumerate(self.ranks):
            # What a rank had when it died, nobody knows: those who are left may sum it again.
            before = self.results.get((total.number, other), said)
            if before != said and not one.dead:
                raise Violation(
                    "the same sums",
                    f"rank {seat} has sum {total.number} of {total.members}, {total.present} "
                    f"present, and rank {other} of {before[1]}, {before[2]} present",
                )
        wanted = np.zeros((self.case.sums, self.case.ranks), np.int32)
        wanted[total.number, list(total.members)] = 1
        if not np.array_equal(total.total, wanted):
            raise Violation("counted once", f"sum {total.number} of {total.members} is not so")
        if not set(total.members) <= set(total.present):
            raise Violation("who is in", f"{total.members} are not all of {total.present}")
        if self.case.groups:
            counted = [len(set(group) & set(total.members)) for group in self.case.groups]
            if counted != [1] * len(self.case.groups):
                raise Violation("each group once", f"sum {total.number} has {total.members}")
        elif len(total.members) < self.case.at_least:
            raise Violation("at least", f"sum {total.number} has {total.members}")

    def _take(self, rank: _Rank) -> None:
        total = rank.queue.pop(0)
        if total.number != rank.taken:
            raise Violation("in order", f"call {rank.taken} gets sum {total.number}")
        rank.taken += 1

    def _check_error(self, seat: int, error: P4ReduceError) -> None:
        """An attendant ends with one if sums cannot come about, or if nobody lacks any."""
        rank = self.ranks[seat]
        if not isinstance(error, WorkerLostError):
            raise Violation("no error", f"rank {seat}: {error}")
        gone = {other for other, one in enumerate(self.ranks) if one.dead}
        if rank.taken + len(rank.queue) < self.case.sums and self.case.bearable(gone):
            raise Violation("no error", f"rank {seat}, with {gone or 'nobody'} dead: {error}")

    def finished(self) -> bool:
        """Whether nothing more is to come."""
        return all(
            rank.dead or (rank.request is None and not rank.queue)
            for seat, rank in enumerate(self.ranks)
            if seat not in self.case.idle
        )

    # -- Which state it is -------------------------------------------------------------------------

    def state(self) -> Hashable:
        """Return what distinguishes states."""
        least = min((rank.at for rank in self.ranks if not rank.gone), default=0)
        ranks = [
            (
                rank.dead,
                rank.leaving,
                rank.taken,
                len(rank.queue),
                rank.deposit is not None,
                rank.duties.completed,
                rank.duties.alive,
                _signature(rank.request),
                rank.error is None,
                0 if rank.gone else rank.at - least,
            )
            for rank in self.ranks
        ]
        log = [
            sorted((seat, _signature(part)) for seat, part in parts.items())
            for parts in self.log[least:]
        ]
        last = max((number for number, _ in self.results), default=0)
        results = sorted((key, said) for key, said in self.results.items() if key[0] >= last)
        everything = (ranks, log, self.life, self.deaths, results)
        return hashlib.blake2b(repr(everything).encode(), digest_size=16).digest()


def _check_progress(world: _World, good: set[Hashable]) -> None:
    """From here on nobody dies, and whatever can happen does, in turn: all has to be over then."""
    seen: list[Hashable] = []
    for _ in range(_ROUNDS):
        state = world.state()
        if state in good or world.finished():
            good.update(seen)
            return
        seen.append(state)
        done = False
        for what in _FAIR:
            for event in [one for one in world.events() if one.what == what]:
                if event in world.events():
                    world.do(event)
                    done = True
        if not done:
            break
    states = [
        f"rank {seat} has taken {rank.taken} sums and waits for {_signature(rank.request)[:2]}"
        for seat, rank in enumerate(world.ranks)
        if not rank.dead
    ]
    raise Violation("progress", f"the ranks never finish: {'; '.join(states)}")


def _signature(request: Request | None) -> tuple[object, ...]:
    if request is None or isinstance(request, Turn | Reform):
        return (type(request).__name__,)
    return (type(request).__name__, request.name, request.array.tobytes())


def _no_plan(roll: Roll, summed: bool) -> None:
    """Time stands still: a roll is called at any time."""


# -- Cases -----------------------------------------------------------------------------------------

_PAIR, _PAIRS, _THREE = ((0, 1),), ((0, 1), (2, 3)), ((0, 1), (2,))

LATE_SMALL = [
    LateCase("late: coded, 2 ranks", 2, _PAIR),
    LateCase("late: coded, 2 ranks, a loss", 2, _PAIR, deaths=1, sums=1),
    LateCase("late: coded, 2 ranks, one never calls", 2, _PAIR, idle=frozenset({0})),
    LateCase("late: deadline, 2 ranks, both needed, a loss", 2, at_least=2, deaths=1, sums=1),
    LateCase("late: deadline, 2 ranks, 1 behind at most", 2, history=1),
]

LATE_LARGE = [
    LateCase("late: coded, 2 ranks, a loss", 2, _PAIR, deaths=1),
    LateCase("late: coded, 3 ranks", 3, _THREE, sums=1),
    LateCase("late: coded, 4 ranks, two never call", 4, _PAIRS, idle=frozenset({0, 3}), sums=1),
    LateCase("late: deadline, 2 ranks, a loss", 2, deaths=1),
    LateCase("late: deadline, 3 ranks", 3, at_least=2, sums=1),
]


class _HandsNothingOn(Duties):
    def hand_on(self, root: int, completed: int) -> Steps:
        del root, completed
        yield from ()


class _CountsAll(OneOfEachGroup):
    def members(self, roll: Roll) -> tuple[int, ...] | None:
        return None if super().members(roll) is None else roll.present


class _AddsWhatItHas(Duties):
    def sum_up(self, roll: Roll, members: tuple[int, ...], array: np.ndarray | None) -> Steps:
        counted = members if array is None else tuple(sorted({*members, self.seat}))
        yield from super().sum_up(roll, counted, array)


_PAIR_CODED = LateCase("", 2, _PAIR, sums=1)

LATE_FAULTS = [
    replace(
        _PAIR_CODED,
        name="after a loss, a sum that only some have is not handed on",
        ranks=3,
        groups=((0, 1, 2),),
        deaths=1,
        duties=_HandsNothingOn,
    ),
    replace(
        _PAIR_CODED,
        name="all ranks of a group count",
        policy=lambda: _CountsAll(_PAIR),
    ),
    replace(
        _PAIR_CODED,
        name="a rank of a group adds its numbers, though another one counts",
        duties=_AddsWhatItHas,
    ),
]
"""Faults, each with the case that finds it."""
