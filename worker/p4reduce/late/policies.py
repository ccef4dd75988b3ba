# SPDX-License-Identifier: Apache-2.0
"""Which ranks are in a sum. The negotiation alone decides, so all ranks agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from p4reduce.errors import WorkerLostError
from p4reduce.late.negotiation import MOST, TICK, Negotiation
from p4reduce.wire.rank_sets import describe_ranks


class Policy(Protocol):
    """Decides which ranks are in a sum. Its settings must be equal on all ranks."""

    def members(self, negotiation: Negotiation) -> tuple[int, ...] | None:
        """Return the members among the present ranks; None if the sum waits for others."""

    def due(self, negotiation: Negotiation) -> float:
        """Return the seconds until a decision without further ranks; infinity if there is none."""

    def early(self, negotiation: Negotiation) -> int:
        """Return how many ticks after the last sum enough ranks for this one had called.

        The next negotiation takes place at about that time, unless all ranks call the sum before.
        """

    def check(self, lost: Sequence[int], negotiation: Negotiation | None) -> None:
        """Refuse sums that have become impossible.

        Raises:
            WorkerLostError: too many ranks are lost.
        """

    def missing(self, negotiation: Negotiation) -> str:
        """Return the ranks that a sum waits for."""


class AtLeast:
    """All ranks; after a deadline, at least as many as the callers ask for.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def members(self, negotiation: Negotiation) -> tuple[int, ...] | None:
        present = negotiation.present
        if not present:
            return None
        call = negotiation.call()
        everybody = len(present) == len(negotiation.rows)
        enough = len(present) >= call.at_least
        over = call.deadline < MOST and negotiation.longest_wait >= call.deadline
        return present if enough and (everybody or over) else None

    def due(self, negotiation: Negotiation) -> float:
        present = negotiation.present
        if not present:
            return math.inf
        call = negotiation.call()
        if len(present) < call.at_least or call.deadline == MOST:
            return math.inf
        return max(call.deadline - negotiation.longest_wait, 0) * TICK

    def early(self, negotiation: Negotiation) -> int:
        present = negotiation.present
        came = sorted(negotiation.rows[rank].came for rank in present)
        return came[min(negotiation.call().at_least, len(came)) - 1]

    def check(self, lost: Sequence[int], negotiation: Negotiation | None) -> None:
        if negotiation is None or not negotiation.present:
            return
        needed = negotiation.call().at_least
        left = self._size - len(lost) - len(negotiation.leaving)
        if left < needed:
            gone = sorted({*lost, *negotiation.leaving})
            raise WorkerLostError(
                f"at_least={needed} ranks are needed, and {left} of {self._size} are left: "
                f"{describe_ranks(gone)} {_is_or_are(gone)} gone",
                ranks=gone,
            )

    def missing(self, negotiation: Negotiation) -> str:
        present = negotiation.present
        needed = negotiation.call().at_least if present else 1
        called = f"{describe_ranks(present)} {'has' if len(present) == 1 else 'have'}"
        return (
            f"{called if present else 'no rank has'} called, at_least={needed} are needed, and "
            f"{describe_ranks(negotiation.not_present)} "
            f"{_is_or_are(negotiation.not_present)} missing"
        )


class OneOfEachGroup:
    """The first rank of each group. All ranks of a group have the same numbers.

    Args:
        groups: ranks by group; each rank is in one.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = tuple(tuple(group) for group in groups)

    def members(self, negotiation: Negotiation) -> tuple[int, ...] | None:
        present = set(negotiation.present)
        if not present:
            return None
        negotiation.call()  # raises MismatchError if they called different sums
        members = []
        for group in self._groups:
            there = [rank for rank in group if rank in present]
            if not there:
                return None
            members.append(min(there, key=lambda rank: (-negotiation.rows[rank].waited, rank)))
        return tuple(sorted(members))

    def due(self, negotiation: Negotiation) -> float:
        return math.inf

    def early(self, negotiation: Negotiation) -> int:
        members = self.members(negotiation) or ()
        return max((negotiation.rows[rank].came for rank in members), default=0)

    def check(self, lost: Sequence[int], negotiation: Negotiation | None) -> None:
        gone = {*lost}
        if negotiation is not None and negotiation.present:
            gone.update(negotiation.leaving)
        for number, group in enumerate(self._groups):
            if gone.issuperset(group):
                raise WorkerLostError(
                    f"group {number} is lost: {describe_ranks(group)} {_is_or_are(group)} gone, "
                    f"and no other rank computes {_parts(group)}",
                    ranks=group,
                )

    def missing(self, negotiation: Negotiation) -> str:
        present = set(negotiation.present)
        late = [
            f"group {number} ({describe_ranks(group)}, {_parts(group)})"
            for number, group in enumerate(self._groups)
            if present.isdisjoint(group)
        ]
        return f"no rank of {' and '.join(late)} has called"


def _parts(group: Sequence[int]) -> str:
    return describe_ranks(group).replace("rank", "part")


def _is_or_are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
