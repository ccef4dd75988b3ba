# SPDX-License-Identifier: Apache-2.0
"""Which of a few hosts should run a switch, and with which lanes: a closed form.

Every host has one link, which its ranks and its switch share. A block that a host's own switch sums
crosses the links of the other hosts' ranks only, once in each direction. All hosts are busy at the
same time, so a sum takes as long as the busiest link or the busiest host's cores, whichever is
slower. Links and cores keep busy from the first frame to the last, so queues do not matter: where
one switch is compared, `events` gives the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from p4reduce.arrangement import EACH, FIRST, Host, hosts_with_switches
from p4reduce.tensors.precision import PRECISIONS
from p4reduce.tensors.stochastic import largest_world_size

from p4reduce_lab.planning.framing import NUMBER_BYTES
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.ring import ring_octets, ring_seconds
from p4reduce_lab.planning.schemes import (
    CALL_SECONDS,
    HOST_SECONDS,
    PREPARE_SECONDS,
    RING_STEP_SECONDS,
)
from p4reduce_lab.planning.training import StepTime, TrainingStep, step_time

RING, SPARE, P4 = "ring", "spare", "p4"
PLACES = {
    RING: "the ring (Gloo)",
    EACH: "a switch on every host",
    FIRST: "a switch on one of the hosts",
    SPARE: "a switch on a spare host",
    P4: "a P4 switch",
}
"""Where the switches are, for people."""

FURTHER = (SPARE, P4)
"""Places that take another machine."""

RING_BYTE_SECONDS = 1.2e-9
"""Of a rank's CPU for each byte that it sends around the ring, with those that it receives
(`python -m bench.planner.check --hosts --rates 1000`: 2 hosts, 1 Gbit/s)."""

# Of a rank's CPU for each number, beside what a block takes: `python -m bench.worker.costs --of
# sums`. Numbers are rounded to narrow lanes while frames are in flight. Before that a pass finds
# exponents, and adds what feedback has kept.
_INT16_SECONDS = 1.3e-9
_INT8_SECONDS = 1.2e-9
_FEEDBACK_SECONDS = 1.3e-9


@dataclass(frozen=True)
class Lanes:
    """How numbers travel.

    Attributes:
        name: for people.
        precision: of the lanes.
        before: seconds of a rank's CPU for each number, before its first frame.
        during: the same while frames are in flight, beside what each block takes.
        exact: whether float32 is sent as it is.
    """

    name: str
    precision: str
    before: float
    during: float = 0.0
    exact: bool = False

    @property
    def seconds(self) -> float:
        """Of a rank's CPU for each number, beside what each block takes."""
        return self.before + self.during


LANES = (
    Lanes("float32", "int32", PREPARE_SECONDS, exact=True),
    Lanes("int16", "int16", PREPARE_SECONDS, _INT16_SECONDS),
    Lanes("int8 with feedback", "int8", PREPARE_SECONDS + _FEEDBACK_SECONDS, _INT8_SECONDS),
    Lanes("int8", "int8", PREPARE_SECONDS, _INT8_SECONDS),
)
"""From the least loss to the greatest."""


@dataclass(frozen=True)
class Home:
    """Hosts at an Ethernet switch.

    Attributes:
        hosts: of the job.
        link: of each of them.
        spare: of a spare host.
        cores: of a host, for its ranks' sums and its switch.
    """

    hosts: tuple[Host, ...]
    link: PlannedLink
    spare: PlannedLink
    cores: float = 4

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return sum(len(host.ranks) for host in self.hosts)

    def shares(self, place: str) -> dict[int, float]:
        """Return the share of the blocks that each host's switch sums, by the host's number."""
        if place not in (EACH, FIRST):
            return {}
        chosen = hosts_with_switches(self.hosts, "" if place == EACH else place)
        return dict.fromkeys(chosen, 1 / len(chosen))


@dataclass(frozen=True)
class HomeEstimate:
    """One all-reduce.

    Attributes:
        seconds: from the call to the last result.
        octets: in frames, that the busiest host sends, which are as many as it receives.
        cpu: seconds of CPU of the busiest host of the job, ranks and switch together.
    """

    seconds: float
    octets: float
    cpu: float


def allreduce(home: Home, place: str, lanes: Lanes, numbers: int) -> HomeEstimate:
    """Return the estimate for summing as many float32 numbers.

    Args:
        home: the hosts.
        place: of `PLACES`; the ring sends float32, whatever `lanes` is.
        lanes: of `LANES`.
        numbers: of the tensor.
    """
    if place == RING:
        return _by_ring(home, numbers)
    blocks = math.ceil(numbers / PRECISIONS[lanes.precision].lanes)
    cost = SWITCHES["hardware" if place == P4 else "embedded-udp"]
    shares, ranks = home.shares(place), home.ranks
    octets = cost.frame + cost.framing + (0 if lanes.exact else cost.spared)
    rank = blocks * HOST_SECONDS + lanes.during * numbers
    frames, cores, switches = [], [], []
    for number, host in enumerate(home.hosts):
        own, share = len(host.ranks), shares.get(number, 0.0)
        # To the other switches from the ranks here, and from this one to the ranks elsewhere.
        frames.append(blocks * (own * (1 - share) + (ranks - own) * share))
        switches.append(share * blocks * ranks * cost.per_child)
        cores.append(own * rank + switches[-1])
    wire = max(frames) * home.link.seconds(octets)
    if place == SPARE:
        frames.append(blocks * ranks)
        switches.append(blocks * ranks * cost.per_child)
        wire = max(wire, frames[-1] * home.spare.seconds(octets))
    # A switch is a thread, and so is what sends and receives the blocks of a rank.
    busy = max(max(cores) / home.cores, rank, max(switches))
    numbers_here = numbers * max(len(host.ranks) for host in home.hosts)
    before = lanes.before * max(numbers, numbers_here / home.cores)
    delay = 4 * home.link.delay  # to the switch and back, two links each
    seconds = CALL_SECONDS + delay + before + max(wire, busy)
    return HomeEstimate(seconds, max(frames) * octets, max(cores) + lanes.before * numbers_here)


def _by_ring(home: Home, numbers: int) -> HomeEstimate:
    """Only two of a host's ranks have a neighbour elsewhere, so its link has one rank's bytes."""
    size = NUMBER_BYTES * numbers
    octets = ring_octets(home.ranks, size)
    wire = ring_seconds(home.ranks, size, home.link, step=RING_STEP_SECONDS)
    sent = 2 * (home.ranks - 1) / home.ranks * size * RING_BYTE_SECONDS
    cpu = sent * max(len(host.ranks) for host in home.hosts)
    return HomeEstimate(max(wire, sent, cpu / home.cores), octets, cpu)


@dataclass(frozen=True)
class Way:
    """One way to sum the gradients, and what a step takes with it.

    Attributes:
        place: of the switches: a key of `PLACES`.
        lanes: as `Lanes.name`.
        every: steps from one sum to the next; above 1 it is DiLoCo's.
        time: of a step. DiLoCo's sums overlap with nothing.
        faster: how many times as fast as by the ring an overlapped step is.
        octets: as `HomeEstimate`, of a step.
        cpu: as `HomeEstimate`, of a step.
    """

    place: str
    lanes: str
    every: int
    time: StepTime
    faster: float
    octets: float
    cpu: float

    @property
    def exact(self) -> bool:
        """Whether all gradients are summed in float32, in each step."""
        return self.lanes == LANES[0].name and self.every == 1

    @property
    def name(self) -> str:
        """The way for people."""
        return f"{PLACES[self.place]}, " + (
            f"DiLoCo every {self.every} steps" if self.every > 1 else self.lanes
        )


@dataclass(frozen=True)
class Answer:
    """What the planner says about a home.

    Attributes:
        home, step: what was asked.
        ways: all of them.
        lossless: the best that sends float32 in each step, without another machine.
        lossy: the best of the others that sums in each step.
        seldom: the best with DiLoCo.
        further: the best of all that send float32 in each step, where it takes another machine.
    """

    home: Home
    step: TrainingStep
    ways: tuple[Way, ...]
    lossless: Way
    lossy: Way
    seldom: Way
    further: Way | None


_SAME = 0.02  # of a step; a way with less loss, or with less to set up, is better until then


def answer(home: Home, step: TrainingStep, every: int) -> Answer:
    """Compare all ways.

    Args:
        home: the hosts.
        step: of the training.
        every: steps from one of DiLoCo's averages to the next, 2 or more.
    """
    ways = tuple(_ways(home, step, every))
    own = [way for way in ways if way.place not in FURTHER]
    lossless = _best(way for way in own if way.exact)
    lossy = _best(way for way in own if way.every == 1 and not way.exact)
    seldom = _best(way for way in own if way.every > 1)
    most = _best(way for way in ways if way.exact)
    further = most if most.place in FURTHER else None
    return Answer(home, step, ways, lossless, lossy, seldom, further)


def _best(ways: Iterator[Way]) -> Way:
    """Return the fastest, or the first that is nearly as fast."""
    some = list(ways)
    least = min(way.time.overlapped for way in some)
    return next(way for way in some if way.time.overlapped <= least * (1 + _SAME))


def _ways(home: Home, step: TrainingStep, every: int) -> Iterator[Way]:
    """By place, and from the least loss to the greatest."""
    ring = _way(home, step, RING, LANES[0], 0.0)
    unit = ring.time.overlapped
    yield replace(ring, faster=1.0)
    possible = [
        lanes for lanes in LANES if home.ranks <= largest_world_size(PRECISIONS[lanes.precision])
    ]
    places = [place for place in PLACES if place != RING]
    for lanes in possible:
        for place in places:
            yield _way(home, step, place, lanes, unit)
    for place in places:
        one = allreduce(home, place, LANES[0], step.parameters)
        each = one.seconds / every
        time = StepTime(step.compute, each, step.compute + each, step.compute + each)
        octets, cpu = one.octets / every, one.cpu / every
        yield Way(place, LANES[0].name, every, time, unit / time.overlapped, octets, cpu)


def _way(home: Home, step: TrainingStep, place: str, lanes: Lanes, ring: float) -> Way:
    found: Mapping[int, HomeEstimate] = {
        size: allreduce(home, place, lanes, size) for size in set(step.buckets)
    }
    time = step_time(step, lambda size: found[size].seconds)
    octets = sum(found[size].octets for size in step.buckets)
    cpu = sum(found[size].cpu for size in step.buckets)
    return Way(place, lanes.name, 1, time, ring / time.overlapped, octets, cpu)
