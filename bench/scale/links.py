# SPDX-License-Identifier: Apache-2.0
"""Links that lose, duplicate and reorder frames, in time that advances by ticks."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """An end of a link: a port of a switch, or a rank, whose only port is 0."""

    node: int
    port: int


@dataclass(frozen=True)
class Faults:
    """What happens to a frame on each link that it crosses, each with its own probability.

    Attributes:
        loss: it is lost.
        duplication: it arrives twice, the second time up to `latest` ticks later.
        reordering: it is late by up to `latest` ticks, so that others overtake it. The frames that
            arrive at a node in one tick are taken in any order wherever this is not 0.
        latest: ticks.
    """

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    latest: int = 3

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reordering"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a probability below 1 is asked")


class Links:
    """All links of a network; a frame takes one tick to cross one.

    `ends` has for each end of a link the other one. `frames` and `octets` count what was sent, lost
    frames included.
    """

    def __init__(self, ends: dict[Place, Place], faults: Faults, seed: int) -> None:
        self.frames = self.octets = self.lost = 0
        self._ends = ends
        self._faults = faults
        self._random = random.Random(seed)
        self._tick = 0
        self._due: defaultdict[int, defaultdict[int, list[tuple[int, bytes]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def send(self, node: int, copies: Iterable[tuple[int, bytes]]) -> None:
        """Put frames on links, by the ports of the node that sends them."""
        faults, draw = self._faults, self._random.random
        for port, frame in copies:
            self.frames += 1
            self.octets += len(frame)
            if draw() < faults.loss:
                self.lost += 1
                continue
            end = self._ends[Place(node, port)]
            late = self._late() if draw() < faults.reordering else 0
            self._due[self._tick + 1 + late][end.node].append((end.port, frame))
            if draw() < faults.duplication:
                again = self._tick + 1 + self._late()
                self._due[again][end.node].append((end.port, frame))

    def arrivals(self) -> dict[int, list[tuple[int, bytes]]]:
        """Continue by one tick; return what arrives then, with its port, by node."""
        self._tick += 1
        arrived = self._due.pop(self._tick, None) or defaultdict(list)
        if self._faults.reordering:
            for frames in arrived.values():
                self._random.shuffle(frames)
        return arrived

    def _late(self) -> int:
        return self._random.randint(1, self._faults.latest)
