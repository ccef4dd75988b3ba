# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late or lost: every order of what proxies, callers and losses can do.

It runs the proxies' real code, `p4reduce.late.proxy_protocol` with its policies. A collective of
all proxies is one step here. It is complete when all that are left have given their part. Each gets
its result, or learns of a loss, at any later time. The other cases check with frames that
collectives behave so. Callers call at any time, and a negotiation takes place without them at any
time. A rank dies at any time, before or after it has given its part of a collective.

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
from p4reduce.late.negotiation import ABSENT, FULL, LEAVING, PRESENT, Negotiation, NegotiationRow
from p4reduce.late.outcome import Total
from p4reduce.late.policies import AtLeast, OneOfEachGroup, Policy
from p4reduce.late.proxy_protocol import (
    Announcement,
    AwaitNegotiation,
    ProxyBroadcast,
    ProxyProtocol,
    ProxyReform,
    ProxySum,
    Request,
    Steps,
)
from p4reduce.late.sums import row_of

from p4reduce_model.found import Found, Violation, explore_by_doing

Result = tuple[bytes, tuple[int, ...], tuple[int, ...]]  # numbers, members, present


class Event(NamedTuple):
    """What a rank does, or what befalls it."""

    what: str
    who: int

    def __str__(self) -> str:
        return f"rank {self.who} {self.what}"


_ROUNDS = 400  # of all that can happen, within which all must be over
_CALL, _TAKE, _LEAVE, _NEGOTIATE, _GET, _LOST, _FORM = (
    "calls",
    "takes",
    "leaves",
    "joins",
    "gets",
    "hears of a loss",
    "is formed anew",
)
_DIES, _DIES_GIVING = "dies", "dies, its part given"
_FAIR = (_TAKE, _CALL, _LEAVE, _GET, _LOST, _FORM, _NEGOTIATE)


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
        protocol: what proxies do; anything but the real class is for planting faults.
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
    protocol: type[ProxyProtocol] = ProxyProtocol
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
    protocol: ProxyProtocol
    steps: Steps
    request: Request | None = None  # None: its proxy has ended
    error: P4ReduceError | None = None
    queue: list[Total] = field(default_factory=list)
    pending: np.ndarray | None = None
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
        self.log: list[dict[int, ProxySum | ProxyBroadcast]] = [{}]
        self.ranks = [self._rank(who) for who in range(case.ranks)]
        for rank in self.ranks:
            rank.request = next(rank.steps)

    def _rank(self, who: int) -> _Rank:
        keep: Callable[[Total], None] = lambda total: self._keep(who, total)  # noqa: E731
        policy = self.case.new_policy()
        protocol = self.case.protocol(who, self.case.ranks, policy, keep, _no_plan)
        return _Rank(protocol, protocol.steps())

    # -- What can happen ---------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """All that can happen."""
        ranks = range(self.case.ranks)
        found = [Event(what, who) for who in ranks for what in self._events_of(who)]
        waiting = [rank.request for rank in self.ranks if not rank.gone]
        if waiting and all(isinstance(request, ProxyReform) for request in waiting):
            found.append(Event(_FORM, 0))
        return found

    def _events_of(self, who: int) -> list[str]:
        rank, found = self.ranks[who], []
        if rank.dead:
            return []
        if who not in self.case.idle:
            if rank.queue:
                found.append(_TAKE)
            elif rank.pending is None and rank.taken < self.case.sums and not rank.gone:
                found.append(_CALL)
            if rank.taken == self.case.sums and not rank.leaving:
                found.append(_LEAVE)
        if rank.gone:
            return found
        if isinstance(rank.request, AwaitNegotiation):
            found.append(_NEGOTIATE)
        elif not isinstance(rank.request, ProxyReform):
            if len(self.log[rank.at]) == len(self.life):
                found.append(_GET)
            if any(self.ranks[other].gone for other in self.life):
                found.append(_LOST)
        if self.deaths < self.case.deaths:
            found.append(_DIES)
            if isinstance(rank.request, ProxySum | ProxyBroadcast):
                found.append(_DIES_GIVING)
        return found

    def do(self, event: Event) -> None:
        """Let it happen. Raises Violation."""
        what, who = event
        rank = self.ranks[who]
        if what == _CALL:
            rank.pending = self.case.numbers(who, rank.taken)
        elif what == _TAKE:
            self._take(rank)
        elif what == _LEAVE:
            rank.leaving = True
        elif what in (_DIES, _DIES_GIVING):
            self.deaths += 1
            rank.dead = True
            complete = len(self.log[rank.at]) == len(self.life)
            if what == _DIES and not complete:
                self.log[rank.at].pop(who, None)
        elif what == _NEGOTIATE:
            self._go_on(who, lambda: rank.steps.send(self._said(rank)))
        elif what == _GET:
            result = self._result(self.log[rank.at], who)
            rank.at += 1
            if len(self.log) == rank.at:
                self.log.append({})
            self._go_on(who, lambda: rank.steps.send(result))
        elif what == _LOST:
            self._go_on(who, lambda: rank.steps.throw(WorkerLostError("a rank is gone")))
        else:
            self.life = [who for who, one in enumerate(self.ranks) if not one.gone]
            self.log = [{}]
            for who in self.life:
                self.ranks[who].at = 0
            for who in self.life:
                self._go_on(who, functools.partial(self.ranks[who].steps.send, None))

    def _said(self, rank: _Rank) -> Announcement:
        if rank.leaving:
            return Announcement(NegotiationRow(LEAVING))
        if rank.pending is None:
            return Announcement(
                NegotiationRow(FULL if len(rank.queue) >= self.case.history else ABSENT)
            )
        row = row_of(rank.pending, None, (), at_least=self.case.at_least)
        return Announcement(replace(row, state=PRESENT), rank.pending)

    def _go_on(self, who: int, step: Callable[[], Request]) -> None:
        rank = self.ranks[who]
        try:
            rank.request = step()
        except StopIteration:
            rank.request = None
        except P4ReduceError as error:
            rank.request, rank.error = None, error
        if rank.error is not None:
            self._check_error(who, rank.error)
        if isinstance(rank.request, ProxySum | ProxyBroadcast):
            self._give(who, rank.request)

    def _give(self, who: int, request: ProxySum | ProxyBroadcast) -> None:
        parts = self.log[self.ranks[who].at]
        for other, before in parts.items():
            if (before.name, before.array.shape) != (request.name, request.array.shape):
                raise Violation(
                    "the same calls",
                    f"rank {who} calls {request.name!r} with {request.array.shape}, and rank "
                    f"{other} {before.name!r} with {before.array.shape}",
                )
        parts[who] = replace(request, array=request.array.copy())

    def _result(self, parts: dict[int, ProxySum | ProxyBroadcast], who: int) -> np.ndarray:
        mine = parts[who]
        given = parts.values() if isinstance(mine, ProxySum) else [parts[self.life[mine.root]]]
        total: np.ndarray = np.zeros_like(mine.array)
        for part in given:
            total += part.array
        return total

    # -- What has to hold --------------------------------------------------------------------------

    def _keep(self, who: int, total: Total) -> None:
        rank = self.ranks[who]
        rank.pending = None
        if not rank.leaving:
            rank.queue.append(total)
        if len(rank.queue) > self.case.history:
            raise Violation("memory", f"rank {who} is {len(rank.queue)} sums behind")
        said = (total.total.tobytes(), total.members, total.present)
        self.results[total.number, who] = said
        for other, one in enumerate(self.ranks):
            # What a rank had when it died, nobody knows: those who are left may sum it again.
            before = self.results.get((total.number, other), said)
            if before != said and not one.dead:
                raise Violation(
                    "the same sums",
                    f"rank {who} has sum {total.number} of {total.members}, {total.present} "
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

    def _check_error(self, who: int, error: P4ReduceError) -> None:
        """A proxy ends with one if sums cannot come about, or if nobody lacks any."""
        rank = self.ranks[who]
        if not isinstance(error, WorkerLostError):
            raise Violation("no error", f"rank {who}: {error}")
        gone = {other for other, one in enumerate(self.ranks) if one.dead}
        if rank.taken + len(rank.queue) < self.case.sums and self.case.bearable(gone):
            raise Violation("no error", f"rank {who}, with {gone or 'nobody'} dead: {error}")

    def finished(self) -> bool:
        """Whether nothing more is to come."""
        return all(
            rank.dead or (rank.request is None and not rank.queue)
            for who, rank in enumerate(self.ranks)
            if who not in self.case.idle
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
                rank.pending is not None,
                rank.protocol.completed,
                rank.protocol.alive,
                _signature(rank.request),
                rank.error is None,
                0 if rank.gone else rank.at - least,
            )
            for rank in self.ranks
        ]
        log = [
            sorted((who, _signature(part)) for who, part in parts.items())
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
        f"rank {who} has taken {rank.taken} sums and waits for {_signature(rank.request)[:2]}"
        for who, rank in enumerate(world.ranks)
        if not rank.dead
    ]
    raise Violation("progress", f"the ranks never finish: {'; '.join(states)}")


def _signature(request: Request | None) -> tuple[object, ...]:
    if request is None or isinstance(request, AwaitNegotiation | ProxyReform):
        return (type(request).__name__,)
    return (type(request).__name__, request.name, request.array.tobytes())


def _no_plan(negotiation: Negotiation, summed: bool) -> None:
    """Time stands still: a negotiation takes place at any time."""


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


class _HandsNothingOn(ProxyProtocol):
    def hand_on(self, root: int, completed: int) -> Steps:
        del root, completed
        yield from ()


class _CountsAll(OneOfEachGroup):
    def members(self, negotiation: Negotiation) -> tuple[int, ...] | None:
        return None if super().members(negotiation) is None else negotiation.present


class _AddsWhatItHas(ProxyProtocol):
    def sum_up(
        self, negotiation: Negotiation, members: tuple[int, ...], array: np.ndarray | None
    ) -> Steps:
        counted = members if array is None else tuple(sorted({*members, self.original_rank}))
        yield from super().sum_up(negotiation, counted, array)


_PAIR_CODED = LateCase("", 2, _PAIR, sums=1)

LATE_FAULTS = [
    replace(
        _PAIR_CODED,
        name="after a loss, a sum that only some have is not handed on",
        ranks=3,
        groups=((0, 1, 2),),
        deaths=1,
        protocol=_HandsNothingOn,
    ),
    replace(
        _PAIR_CODED,
        name="all ranks of a group count",
        policy=lambda: _CountsAll(_PAIR),
    ),
    replace(
        _PAIR_CODED,
        name="a rank of a group adds its numbers, though another one counts",
        protocol=_AddsWhatItHas,
    ),
]
"""Faults, each with the case that finds it."""
