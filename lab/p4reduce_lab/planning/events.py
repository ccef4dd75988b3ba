# SPDX-License-Identifier: Apache-2.0
"""The discrete-event model of one all-reduce by switches: frames, queues, slots and the window.

Every frame is an event. Links and switches' cores are queues that serve one frame after the other.
Ranks follow docs/protocol.md: a slot's result permits its next contribution, and a stripe is opened
by a round of its own. The first slots in order may send, as many as the window allows
(`p4reduce.reference.window`). Nothing is lost here.

All ranks of a job do the same at the same time, and so do all switches of a level. So by default
one of each is followed, and weighs as many as there are. A leaf takes one event for the frames of
its 64 ranks, and 100,000 ranks take no longer than 64. `symmetric=False` follows each for itself;
`tests/lab/planning/test_events.py` compares the two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from p4reduce.reference.window import Window
from p4reduce.statistics import RoundTrips

from p4reduce_lab.planning.framing import LinkLoad
from p4reduce_lab.planning.network import PlannedLink, PlannedNetwork

FOLLOWED = 2048
"""Blocks that are followed, at least; beyond, the time grows by what each of the last ones took."""

Event = Callable[[], None]


def allreduce_seconds(
    network: PlannedNetwork, load: LinkLoad, slots: int, *, symmetric: bool = True
) -> float:
    """Return the seconds from the call, on all ranks at once, to the last result.

    Args:
        network: what it runs on. Side by side, each tree has its share of the blocks and of the
            hosts' time.
        load: all of the tensor.
        slots: of the job on each switch.
        symmetric: whether one rank stands for all.

    Raises:
        ValueError: no slots.
    """
    if slots < 1:
        raise ValueError(f"{slots} slots; a job has at least one")
    part = load.part(network.planes)
    enough = max(FOLLOWED, 8 * slots)
    if part.blocks <= enough:
        return _Run(network, part, slots, symmetric).seconds
    half = _Run(network, replace(part, blocks=enough // 2), slots, symmetric).seconds
    whole = _Run(network, replace(part, blocks=enough), slots, symmetric).seconds
    return whole + (part.blocks - enough) * (whole - half) / (enough - enough // 2)


class _SimulatedLine:
    """One direction of a link."""

    def __init__(self, link: PlannedLink) -> None:
        self._link = link
        self._free = 0.0  # when the last frame has left; for a shaper, when tokens were counted
        self._tokens = link.burst

    def send(self, octets: float, at: float, frames: int = 1) -> float:
        """Return when frames of that size that are handed over at a moment have all arrived."""
        link = self._link
        if not link.burst:
            self._free = max(self._free, at) + frames * link.seconds(octets)
            return self._free + link.delay
        start = max(self._free, at)
        size = frames * (octets + link.overhead)
        tokens = min(link.burst, self._tokens + (start - self._free) * link.rate / 8)
        wait = max(0.0, size - tokens) * 8 / link.rate
        self._free = start + wait
        self._tokens = tokens + wait * link.rate / 8 - size
        return self._free + link.delay


class _SimulatedCore:
    """Serves one after the other."""

    def __init__(self) -> None:
        self._free = 0.0

    def serve(self, seconds: float, at: float) -> float:
        """Return when work that arrives at a moment is done."""
        self._free = max(self._free, at) + seconds
        return self._free


class _Run:
    """One all-reduce.

    Attributes:
        seconds: until the last result on any rank.
    """

    def __init__(
        self, network: PlannedNetwork, load: LinkLoad, slots: int, symmetric: bool
    ) -> None:
        self.load = load
        self.seconds = 0.0
        self.stripes = load.stripes(slots)
        self.network = network
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self.symmetric = symmetric
        root = _SimulatedSwitch(self, len(network.fanouts) - 1, None)
        ranks = list(root.ranks())
        for rank in ranks:
            rank.begin()
        while self._events:
            at, _, event = heapq.heappop(self._events)
            self.now = at
            event()
        if any(rank.unfinished for rank in ranks):
            raise RuntimeError("the model has stopped before all blocks were summed")

    now = 0.0

    def at(self, moment: float, event: Event) -> None:
        """Let something happen then."""
        heapq.heappush(self._events, (moment, next(self._order), event))

    def octets(self, opening: bool, up: bool) -> float:
        """Of a frame."""
        if opening:
            return self.load.opening
        return self.load.up if up else self.load.down


class _SimulatedChild:
    """What a switch hears as a contributor: a rank or a switch, with the link to it."""

    def __init__(self, run: _Run, level: int, parent: _SimulatedSwitch | None) -> None:
        self.run = run
        self.parent = parent
        if parent is not None:
            link = run.network.shares[level]
            self._up, self._down = _SimulatedLine(link), _SimulatedLine(link)

    def contribute(self, slot: int, opening: bool, at: float) -> None:
        """Send a contribution to the parent."""
        assert self.parent is not None
        parent = self.parent
        # A switch's contribution has the sum of all below, so it has lanes if any of them has.
        whole = not opening and isinstance(self, _SimulatedSwitch)
        octets = self.run.load.down if whole else self.run.octets(opening, True)
        arrival = self._up.send(octets, at)
        self.run.at(arrival, lambda: parent.arrived(octets, slot, opening))

    def send_down(self, slot: int, opening: bool, at: float) -> None:
        """Be sent a result by the parent."""
        arrival = self._down.send(self.run.octets(opening, False), at)
        self.run.at(arrival, lambda: self.result(slot, opening))

    def result(self, slot: int, opening: bool) -> None:
        """A result has arrived."""
        raise NotImplementedError


class _SimulatedSwitch(_SimulatedChild):
    def __init__(self, run: _Run, level: int, parent: _SimulatedSwitch | None) -> None:
        super().__init__(run, level + 1, parent)
        fanout, trunk = run.network.fanouts[level], run.network.trunk
        self._trunk = (_SimulatedLine(trunk), _SimulatedLine(trunk)) if trunk is not None else None
        self._weight = fanout if run.symmetric else 1
        self._fanout = fanout
        self._core = _SimulatedCore()
        self._heard = [0] * run.stripes
        count = 1 if run.symmetric else fanout
        self._children: list[_SimulatedChild] = [
            _SimulatedRank(run, self) if level == 0 else _SimulatedSwitch(run, level - 1, self)
            for _ in range(count)
        ]

    def ranks(self) -> list[_SimulatedRank]:
        """Below."""
        found: list[_SimulatedRank] = []
        for child in self._children:
            if isinstance(child, _SimulatedSwitch):
                found += child.ranks()
            elif isinstance(child, _SimulatedRank):
                found.append(child)
        return found

    def arrived(self, octets: float, slot: int, opening: bool) -> None:
        """Frames of children have crossed their links."""
        if self._trunk is None:
            self._heard_now(slot, opening)
            return
        at = self._trunk[0].send(octets, self.run.now, self._weight)
        self.run.at(at, lambda: self._heard_now(slot, opening))

    def _heard_now(self, slot: int, opening: bool) -> None:
        cost = self.run.network.switch
        done = self._core.serve(self._weight * cost.contribution, self.run.now)
        self._heard[slot] += self._weight
        if self._heard[slot] < self._fanout:
            return
        self._heard[slot] = 0
        if self.parent is None:
            self._deliver(slot, opening, done)
        else:
            self.contribute(slot, opening, self._core.serve(cost.copy, done))

    def result(self, slot: int, opening: bool) -> None:
        cost = self.run.network.switch
        self._deliver(slot, opening, self._core.serve(cost.contribution, self.run.now))

    def _deliver(self, slot: int, opening: bool, at: float) -> None:
        cost = self.run.network.switch
        for child in self._children:
            out = self._core.serve(self._weight * cost.copy, at)
            if self._trunk is not None:
                octets = self.run.octets(opening, False)
                out = self._trunk[1].send(octets, out, self._weight)
            child.send_down(slot, opening, out)


class _SimulatedRank(_SimulatedChild):
    def __init__(self, run: _Run, parent: _SimulatedSwitch) -> None:
        super().__init__(run, 0, parent)
        self._core = _SimulatedCore()
        stripes, blocks = run.stripes, run.load.blocks
        self._left = [1 + (blocks - slot + stripes - 1) // stripes for slot in range(stripes)]
        self._sent_at = [0.0] * stripes
        self._round_trips = RoundTrips()
        self._window = Window(stripes, self._round_trips)
        self._unfinished = list(range(stripes))  # in the order of the gate
        self._opening = [True] * stripes
        self._waiting: list[int] = list(range(stripes))  # a heap of slots with something to send
        self._sample = np.zeros(1)

    @property
    def unfinished(self) -> bool:
        return bool(self._unfinished)

    def begin(self) -> None:
        """Open all stripes."""
        self._release(0.0)

    def _release(self, at: float) -> None:
        """Send what the window allows: the first slots that are not through, in order."""
        if not self._unfinished:
            return
        last = self._unfinished[min(self._window.size, len(self._unfinished)) - 1]
        while self._waiting and self._waiting[0] <= last:
            slot = heapq.heappop(self._waiting)
            self._sent_at[slot] = at
            self.contribute(slot, self._opening[slot], at)

    def result(self, slot: int, opening: bool) -> None:
        planes = self.run.network.planes
        now = self._core.serve(self.run.network.host * planes, self.run.now)
        self._left[slot] -= 1
        self._opening[slot] = False
        window = self._window
        window.heard(self.run.now)
        if not opening:
            self._sample[0] = self.run.now - self._sent_at[slot]
            self._round_trips.add(self._sample)
            window.completed(1, 0)
        if self._left[slot]:
            heapq.heappush(self._waiting, slot)
        else:
            self._unfinished.remove(slot)
            self.run.seconds = max(self.run.seconds, now)
        self._release(now)
