# SPDX-License-Identifier: Apache-2.0
"""Divides a communicator's calls among its switches.

Only the order of calls decides which switch a collective uses and where it is cut, so all ranks
divide alike. The first call that differs between ranks meets another one at some switch, where
their tags disagree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.latch import Latch
from p4reduce.session.session import Session
from p4reduce.session.solo import Solo
from p4reduce.switches.shares import HELD_BACK, Shares, SwitchRate
from p4reduce.tensors import plans
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.progress import PartPlace, SwitchProgress
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation

OnEnd = Callable[[Collective], object]

BALANCE = "balance of the switches"
_LONG = 3600.0  # seconds; the collective that is waited for has a deadline of its own


@dataclass(slots=True)
class CallShare:
    """The part of a call that goes through one switch.

    Attributes:
        session: runs it.
        sequence: its number in the session.
        number: of the call within the communicator.
        wanted: whether the call's result depends on it.
        on_end: called when it is complete.
        place: where it belongs among the parts of the call; None: no other switch has to know.
    """

    plan: CollectivePlan[Any]
    session: Session | Solo
    sequence: int
    number: int
    wanted: bool = True
    on_end: OnEnd | None = None
    place: PartPlace | None = None


@dataclass
class Deal:
    """The parts of some calls, and what to do when their sessions have got them.

    Attributes:
        parts: of the calls, in the order in which their sessions get them.
        keep: call it when the sessions have got them. It makes the next deal follow this one.
    """

    parts: Sequence[CallShare]
    keep: Callable[[], object]


class Dealer:
    """Knows how many collectives each switch had, and its share of the next ones.

    Args:
        sessions: one per switch, in the same order on all ranks.
        failed: called when a part has ended with an error; must not block.
    """

    def __init__(
        self,
        sessions: Sequence[Session | Solo],
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._failed = failed
        self._sequences = [0] * len(sessions)
        self._number = 0
        self._rates = [SwitchRate() for _ in sessions]
        self._progress = SwitchProgress(len(sessions))
        self._cuts = 0
        # Where each switch has a link of its own, none leaves anything to another.
        self._share_links = any(session.shares_link for session in sessions)
        self._shares = Shares(len(sessions), sessions[0].world_size)
        self._agreement: _RateAgreement | None = None

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._number

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each switch in the next calls; they add up to 1."""
        weights = self._shares.weights
        return tuple(weight / sum(weights) for weight in weights)

    def deal(self, calls: Sequence[CollectivePlan[Any]]) -> Deal:
        """Return the parts of some calls. They count when the deal is kept.

        Measured rates are used up in any case.

        Raises:
            P4ReduceError: the ranks could not agree on shares; the communicator is broken.
        """
        if len(self._sessions) == 1:
            return self._deal_to_one(calls)
        if len(calls) == 1 and not self._shares.cuts(len(calls[0].source)):
            return self._deal_whole(calls[0])
        draft = copy.copy(self)
        draft._sequences = list(self._sequences)
        draft._shares = self._shares.copy()
        parts = [part for plan in calls for part in draft._parts(plan)]
        return Deal(parts, lambda: self.__dict__.update(draft.__dict__))

    def _deal_to_one(self, calls: Sequence[CollectivePlan[Any]]) -> Deal:
        first, (session,) = self._number, self._sessions

        def keep() -> None:
            self._number = first + len(calls)

        parts = [
            CallShare(plan, session, number, number) for number, plan in enumerate(calls, first)
        ]
        return Deal(parts, keep)

    def _deal_whole(self, plan: CollectivePlan[Any]) -> Deal:
        blocks, number = len(plan.source), self._number
        switch = self._shares.next_switch(blocks)
        sequence = self._sequences[switch]

        def keep() -> None:
            self._number = number + 1
            self._sequences[switch] = sequence + 1
            self._shares.count_at(switch, blocks)

        part = CallShare(plan, self._sessions[switch], sequence, number, on_end=self._whole_over)
        return Deal([part], keep)

    def _parts(self, plan: CollectivePlan[Any]) -> list[CallShare]:
        number, self._number = self._number, self._number + 1
        blocks = len(plan.source)
        if not self._shares.cuts(blocks):
            return [self._to(self._shares.take_one(blocks), plan, number, self._whole_over)]
        to_agree = not plan.call.priority and self._shares.due()
        if to_agree and self._agreement is not None:
            self._agreement.settle(self._shares)
        ranges = self._shares.ranges(blocks)
        parts = [
            replace(
                self._to(switch, plan.part(switch, len(ranges), first, stop), number, self._over),
                place=self._place(switch, plan),
            )
            for switch, (first, stop) in enumerate(ranges)
        ]
        self._cuts += not plan.call.priority
        if to_agree:
            row = self._shares.row([rate.take() for rate in self._rates])
            self._agreement = _RateAgreement(row, self._sessions[0].world_size, self._failed)
            part = self._to(
                self._shares.take_one(0), self._agreement.plan, number, self._agreement.over
            )
            parts.append(replace(part, wanted=False))
        return parts

    def _to(
        self, switch: int, plan: CollectivePlan[Any], number: int, on_end: OnEnd | None
    ) -> CallShare:
        sequence, self._sequences[switch] = self._sequences[switch], self._sequences[switch] + 1
        return CallShare(plan, self._sessions[switch], sequence, number, on_end=on_end)

    def _place(self, switch: int, plan: CollectivePlan[Any]) -> PartPlace | None:
        # Urgent ones overtake the others, so they say nothing about how far a switch is.
        if plan.call.priority or not self._share_links:
            return None
        return PartPlace(self._progress, switch, self._cuts)

    def _over(self, collective: Collective) -> None:
        part = collective.call.part
        assert part is not None
        if collective.error is None:
            blocks = collective.count + HELD_BACK * self._progress.take_held_back(part.number)
            self._rates[part.number].add(blocks, collective.started, collective.over_at)
        else:
            self._failed()

    def _whole_over(self, collective: Collective) -> None:
        if collective.error is not None:
            self._failed()


class _RateAgreement:
    """The collective by which the ranks exchange the rates of the switches."""

    def __init__(
        self, row: npt.NDArray[np.int32], world_size: int, failed: Callable[[], object]
    ) -> None:
        self.plan = plans.allreduce(
            row, Operation.SUM, BALANCE, None, world_size=world_size
        ).uncounted()
        self._failed = failed
        self._error: P4ReduceError | None = None
        self._over = Latch()

    def over(self, collective: Collective) -> None:
        """It has ended."""
        self._error = collective.error
        self._over.set()
        if collective.error is not None:
            self._failed()

    def settle(self, shares: Shares) -> None:
        """Take its result over. It was started so long ago that it is over, or nearly.

        Raises:
            P4ReduceError: what it ended with.
        """
        while not self._over.wait(_LONG):
            pass
        if self._error is not None:
            raise copy.copy(self._error)
        shares.agree(self.plan.result())
