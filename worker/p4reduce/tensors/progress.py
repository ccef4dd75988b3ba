# SPDX-License-Identifier: Apache-2.0
"""How far the switches of a communicator are with the collectives that are cut among them.

A switch that is ahead of the slowest one gets a smaller window, so that all parts of a collective
end together (docs/scale.md, "Together to the end"). The window is C's: `csrc/worker/window.c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class SwitchProgress:
    """What the sessions with the switches tell each other, in memory that C reads and writes.

    Args:
        switches: their number.
    """

    def __init__(self, switches: int) -> None:
        self.switches = switches
        self._places = np.zeros(switches)
        self._held_back = np.zeros(switches)
        self.places_at = self._places.ctypes.data
        self.held_back_at = self._held_back.ctypes.data
        self._taken = [0.0] * switches

    def take_held_back(self, switch: int) -> float:
        """Return how many blocks a switch left to others since the last call.

        For the progress thread of the session with that switch.
        """
        all_of_them = float(self._held_back[switch])
        since, self._taken[switch] = all_of_them - self._taken[switch], all_of_them
        return since


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a part of a collective belongs.

    Attributes:
        progress: of all switches.
        switch: that sums this part.
        before: how many collectives were cut before this one.
    """

    progress: SwitchProgress
    switch: int
    before: int
