# SPDX-License-Identifier: Apache-2.0
"""Each switch's share of the collectives.

A collective is cut into one range of blocks per switch, and it is over when the last range is. So
each switch should get as many blocks as it sums in the same time as the others. Every rank measures
how many blocks each switch sums per second while anything is in flight there. At every 16th
collective that is cut, the ranks add up their rates by a collective of a few bytes. The sums hold
from the 16th one after that on. No rank decides alone, because ranges that differ would not fit
each other. (If ranks still cut in different places, their tags differ, which is an error.)

The measured rate holds the wait for the slowest rank as well, and that is right. Let n_i blocks
take t_i = w + n_i / c_i seconds, where w is the wait and c_i the switch's own speed. The measured
rate is n_i / t_i. Shares stay as they are only if n_i is in proportion to n_i / t_i, and then all
t_i are equal.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WHOLE = 1024  # what all shares add up to, about
LEAST_SHARE = WHOLE // 64  # of a switch; with none its rate would never be known again
LEAST_CHANGE = 32  # what is less than the 32nd part of a share is noise
MOST_WHOLE = 32
"""Blocks per switch. With no more, a collective goes through one of the switches: to start and end
another part takes longer than the link is busy with that many blocks."""
RUN = 128
"""Blocks that a switch may be ahead of the others by collectives that are not cut. A small
collective is faster where the one before it was, because that switch is still awake."""
HELD_BACK = 0.25
"""Of the blocks that a switch ahead of others left to them, counted as summed there. One that is
always ahead is faster, and gets more. To be ahead by chance changes little."""
PERIOD = 16  # collectives that are cut between two agreements


class SwitchRate:
    """The blocks per second of one switch, as one rank sees them.

    Only time with blocks in flight counts, and parallel collectives count once.
    """

    def __init__(self) -> None:
        self._blocks = 0.0
        self._busy = 0.0
        self._from = self._over_at = 0.0  # the latest time in which something was in flight

    def add(self, blocks: float, started: float, over: float) -> None:
        """Count a part of a collective. Times are of the monotonic clock."""
        if started >= self._over_at:
            self._busy += over - started
            self._from = started
        else:  # what of it lies behind the others, and before them
            self._busy += max(over - self._over_at, 0.0) + max(self._from - started, 0.0)
            self._from = min(self._from, started)
        self._over_at = max(self._over_at, over)
        self._blocks += blocks

    def take(self) -> float:
        """Return the rate since the last call; 0 without measurements."""
        rate = self._blocks / self._busy if self._busy > 0 else 0.0
        self._blocks, self._busy = 0.0, 0.0
        return rate


class Shares:
    """The agreed shares, equal on all ranks at the same place in their calls.

    Attributes:
        weights: of each switch.

    Args:
        switches: their number.
        world_size: the number of ranks.
    """

    def __init__(self, switches: int, world_size: int) -> None:
        self.weights = [WHOLE // switches] * switches
        self._most = np.iinfo(np.int32).max // world_size  # so that the sum is in range
        self._blocks_at = [0] * switches  # of collectives that were not cut
        self._last_switch = 0  # where the latest of these went
        self._until_agreed = PERIOD

    def copy(self) -> Shares:
        """Return a copy."""
        other = copy.copy(self)
        other.weights, other._blocks_at = list(self.weights), list(self._blocks_at)
        return other

    def cuts(self, blocks: int) -> bool:
        """Whether a collective with that many blocks uses all switches."""
        return blocks > MOST_WHOLE * len(self.weights)

    def ranges(self, blocks: int) -> list[tuple[int, int]]:
        """Return each switch's range of blocks, as from and to."""
        ends = [blocks * int(end) // sum(self.weights) for end in np.cumsum(self.weights)]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def take_one(self, blocks: int) -> int:
        """Return `next_switch` for a collective that is not cut, and count it there."""
        switch = self.next_switch(blocks)
        self.count_at(switch, blocks)
        return switch

    def next_switch(self, blocks: int) -> int:
        """Return the switch of a collective that is not cut: the last one's, for `RUN` blocks."""
        total = sum(self.weights)
        after = [
            (had + max(blocks, 1)) * total / weight
            for had, weight in zip(self._blocks_at, self.weights, strict=True)
        ]
        least = min(after)
        if after[self._last_switch] > least + RUN * len(after):
            return after.index(least)
        return self._last_switch

    def count_at(self, switch: int, blocks: int) -> None:
        """Count a collective that goes through a switch whole."""
        self._last_switch = switch
        self._blocks_at[switch] += max(blocks, 1)  # what has none makes the ranks meet all the same

    def due(self) -> bool:
        """Count a collective that is cut; return whether the ranks agree on shares with it."""
        self._until_agreed -= 1
        if self._until_agreed:
            return False
        self._until_agreed = PERIOD
        return True

    def row(self, rates: Sequence[float]) -> npt.NDArray[np.int32]:
        """Return a rank's message to the others."""
        if not all(rates):
            return np.zeros(len(rates), np.int32)
        return np.array([min(max(int(rate), 1), self._most) for rate in rates], np.int32)

    def agree(self, rates: npt.NDArray[np.int32]) -> bool:
        """Move halfway to the sum of the ranks' rows; return whether anything changed.

        Halfway, because measurements vary.
        """
        total = sum(rates.tolist())
        if not all(rates.tolist()):
            return False
        weights = [max(WHOLE * rate // total, LEAST_SHARE) for rate in rates.tolist()]
        pairs = zip(weights, self.weights, strict=True)
        if all(abs(new - old) * LEAST_CHANGE < old for new, old in pairs):
            return False
        self.weights = [(new + old) // 2 for new, old in zip(weights, self.weights, strict=True)]
        self._blocks_at = [0] * len(self.weights)  # counted by the old weights
        return True
