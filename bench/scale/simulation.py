# SPDX-License-Identifier: Apache-2.0
"""All ranks and switches of a job in one process, over links with faults; every sum is checked.

Runs what runs in real life: a compiled P4 program for each switch, with the controller's entries,
and each rank's slot machine. Time is virtual: a frame crosses a link in a millisecond. So a run is
the same whenever it is given the same seed, whatever else the machine does.

A rank takes frames one by one. How many there are in a millisecond says nothing about a network: a
round trip is two of them by one switch and four by two levels, so the slots' results come in two
heaps there and in four here, and a heap of twice the height is cheaper for each frame.

    python -m bench.scale.simulation [--ranks 64 | --ranks 64 --leaves 64] [--loss 0.01]
        [--duplication 0.01] [--reordering 0.05] [--seed 1] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from p4reduce.protocol.slots import FEW
from p4reduce.wire.frames import FrameBuffer
from p4reduce_switch.pipeline import Pipeline

from bench.program import Option, read_options, run, tell
from bench.scale.links import Faults, Links
from bench.scale.ranks import Rank, Tensor
from bench.scale.shape import Shape
from bench.scale.switches import address_of, lay_out_job, make_switch

TICK = 0.001  # seconds of virtual time
JOB = 7
MOST_TICKS = 200_000
TENSORS = (Tensor("float32", 48, 0.5), Tensor("int32", 16), Tensor("float32", 16))


class StuckError(Exception):
    """The simulated job does not get on; the message says which seed repeats that."""


class WrongSumError(Exception):
    """A rank has a result that is not the sum of all ranks' inputs."""


@dataclass(frozen=True)
class Outcome:
    """What a simulation took.

    Attributes:
        ranks, switches: of the job.
        seed: that repeats it.
        contributions: of all ranks, without repetitions: one a rank and round.
        repeated: by timers, in multiples of `contributions`.
        statuses: answers to the ranks that say who is missing.
        frames, octets: on all links together.
        lost: frames.
        virtual_seconds: until the last rank had its last result.
        setup_cpu, switch_cpu, rank_cpu, links_cpu: seconds of processor time. The last three are
            what the run took, shared out by the clock: to ask for processor time takes 16 us on
            some virtual machines, more than a turn of a rank does.
    """

    ranks: int
    switches: int
    seed: int
    contributions: int
    repeated: float
    statuses: int
    frames: int
    octets: int
    lost: int
    virtual_seconds: float
    setup_cpu: float
    switch_cpu: float
    rank_cpu: float
    links_cpu: float

    @property
    def sent(self) -> float:
        """Contributions, repetitions included: frames that ranks have sent."""
        return self.contributions * (1 + self.repeated)

    @property
    def microseconds(self) -> float:
        """Of processor time for each of these, all that it goes through and leads to included."""
        return 1e6 * self.run_cpu / self.sent

    @property
    def run_cpu(self) -> float:
        """Seconds of processor time without the set-up."""
        return self.switch_cpu + self.rank_cpu + self.links_cpu

    @property
    def microseconds_needed(self) -> float:
        """The same, divided by the contributions without repetitions."""
        return self.microseconds * (1 + self.repeated)

    @property
    def frames_each(self) -> float:
        """Frames on all links for each contribution that is not a repetition; 2 is the least."""
        return self.frames / self.contributions


class Simulation:
    """A job of some ranks.

    Nodes of the links are the ranks, from 0 on, and then the switches. The seed is of the faults
    and of the ranks' inputs. `few` is `SlotMachine`'s.
    """

    def __init__(self, shape: Shape, slots: int, faults: Faults, seed: int, few: int = FEW) -> None:
        start = time.process_time()
        self._seed = seed
        ranks = shape.ranks
        entities = lay_out_job(shape, JOB, slots)
        self.switches: list[Pipeline] = [
            make_switch(address_of(shape, node), entities[node])
            for node in range(ranks, shape.root + 1)
        ]
        self.links = Links(shape.ends(), faults, seed)
        buffer = FrameBuffer(1)
        self.ranks: list[Rank] = []
        for leaf in shape.levels[1]:
            here, levels = address_of(shape, leaf), shape.levels_above(leaf)
            self.ranks += [
                Rank(rank, ranks, JOB, slots, here, levels, buffer, few)
                for rank in shape.children(leaf)
            ]
        self._due = np.full(ranks, np.inf)
        self._now = 0.0
        self._took = self._cpu = 0.0
        self._setup_cpu = time.process_time() - start
        self._seconds = {"switch": 0.0, "rank": 0.0, "links": 0.0}

    def run(self, tensors: Sequence[Tensor]) -> Outcome:
        """Reduce some tensors, all of them called at once, and check all results.

        Raises:
            StuckError, WrongSumError: see there.
        """
        for _ in self.steps(tensors):
            pass
        return self.outcome()

    def steps(self, tensors: Sequence[Tensor]) -> Iterator[float]:
        """The same step by step: gives the seconds of processor time that it has taken so far.

        What is done between two steps is not counted. `outcome` is there after the last one.
        """
        for number, tensor in enumerate(tensors):
            for rank, one in enumerate(self.ranks):
                one.submit(tensor.of_rank(rank, (self._seed, number)))
        working = set(range(len(self.ranks)))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._cpu = 0.0
        start = time.process_time()
        self._turn_of_ranks({rank: [] for rank in working})
        begun = self._now
        while working:
            if self._now - begun > MOST_TICKS * TICK:
                raise StuckError(
                    f"{len(working)} of {len(self.ranks)} ranks are not finished after "
                    f"{self._now - begun:g} s of virtual time (seed {self._seed})"
                )
            touched = self._tick()
            working -= {rank for rank in touched if self.ranks[rank].over}
            self._cpu += time.process_time() - start
            yield self._cpu
            start = time.process_time()
        self._took = self._now - begun
        self._check(tensors)

    def _tick(self) -> set[int]:
        """Continue by a tick; return the ranks that something happened to."""
        start = time.perf_counter()
        arrived = self.links.arrivals()
        self._now += TICK
        self._seconds["links"] += time.perf_counter() - start
        for node in sorted(node for node in arrived if node >= len(self.ranks)):
            self._turn_of_switch(node, arrived.pop(node))
        for rank in np.flatnonzero(self._due <= self._now).tolist():
            arrived.setdefault(rank, [])
        self._turn_of_ranks(arrived)
        return set(arrived)

    def _turn_of_switch(self, node: int, frames: list[tuple[int, bytes]]) -> None:
        process = self.switches[node - len(self.ranks)].process
        start = time.perf_counter()
        copies = [copy for port, frame in frames for copy in process(port, frame)]
        middle = time.perf_counter()
        self.links.send(node, copies)
        self._seconds["switch"] += middle - start
        self._seconds["links"] += time.perf_counter() - middle

    def _turn_of_ranks(self, arrived: dict[int, list[tuple[int, bytes]]]) -> None:
        for number in sorted(arrived):
            rank = self.ranks[number]
            start = time.perf_counter()
            frames: list[tuple[int, bytes]] = []
            for _, frame in arrived[number]:
                rank.receive(frame, self._now)
                frames += rank.send(self._now)
            if self._due[number] <= self._now:
                rank.machine.expire(self._now)
            frames += rank.send(self._now)
            self._due[number] = rank.machine.next_due
            middle = time.perf_counter()
            self.links.send(number, frames)
            self._seconds["rank"] += middle - start
            self._seconds["links"] += time.perf_counter() - middle

    def _check(self, tensors: Sequence[Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            expected = tensor.sum_of(len(self.ranks), (self._seed, number))
            for rank, one in enumerate(self.ranks):
                if not np.array_equal(one.results[-len(tensors) + number], expected):
                    raise WrongSumError(
                        f"rank {rank} has a wrong sum of tensor {number} (seed {self._seed})"
                    )

    def outcome(self) -> Outcome:
        """What the last run took."""
        counts = [rank.machine.counts for rank in self.ranks]
        clock = sum(self._seconds.values())
        repeated = sum(one.retransmissions for one in counts)
        first = sum(one.frames_sent for one in counts) - repeated
        return Outcome(
            ranks=len(self.ranks),
            switches=len(self.switches),
            seed=self._seed,
            contributions=first,
            repeated=repeated / first,
            statuses=sum(one.statuses for one in counts),
            frames=self.links.frames,
            octets=self.links.octets,
            lost=self.links.lost,
            virtual_seconds=self._took,
            setup_cpu=self._setup_cpu,
            **{f"{name}_cpu": self._cpu * part / clock for name, part in self._seconds.items()},
        )


def said(outcome: Outcome) -> str:
    """An outcome in a line."""
    return (
        f"{outcome.ranks:,} ranks, {outcome.switches} switches, seed {outcome.seed}: all sums "
        f"exact; {outcome.contributions:,} contributions, {outcome.repeated:.1%} repeated, "
        f"{outcome.statuses / outcome.contributions:.2f} STATUS and {outcome.frames_each:.2f} "
        f"frames each, {outcome.lost:,} frames lost, {outcome.microseconds:.0f} us of processor "
        f"time for each that was sent, {outcome.microseconds_needed:.0f} us without repetitions"
    )


def main() -> None:
    options = read_options(
        __doc__,
        ranks=Option(64, "at each switch"),
        leaves=Option([], "switches under each next one", int),
        slots=16,
        loss=Option(0.01, "on each link"),
        duplication=0.01,
        reordering=0.05,
        seed=1,
    )
    shape = Shape((options.ranks, *options.leaves))
    faults = Faults(options.loss, options.duplication, options.reordering)
    outcome = Simulation(shape, options.slots, faults, options.seed).run(TENSORS)
    tell(options, [asdict(outcome)], said(outcome))


if __name__ == "__main__":
    run(main)
