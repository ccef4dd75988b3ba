# SPDX-License-Identifier: Apache-2.0
"""How often a switch of a tree asks for room, and what that costs, by how sparse tensors are.

Two leaves of four ranks each and a root: the compiled program three times, and the slot machine
of each rank, in one process and without loss. What is counted depends on no clock. The order in
which frames arrive is random, so that the last contribution is anybody's.

    python -m bench.worker.room
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import AGGREGATION_PORT, Endpoint
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Child, Level
from p4reduce_controller.fabric.compiled_program import compiled_files
from p4reduce_controller.values.mac_ip import format_ip, format_mac, parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Entry

LEAVES, RANKS, SLOTS, JOB = 2, 4, 8, 9
UPLINK = 100  # a leaf's port; at the root, leaf n is at port n + 1
FULL, HALVES, UP = 2, 3, 4
WORLD = LEAVES * RANKS
EVERY_LEAF = (1 << LEAVES) - 1
EVERY_RANK = (1 << RANKS) - 1

Array = npt.NDArray[np.int32]
Frame = tuple[Pipeline | SlotMachine, int, bytes]  # to whom, by which port


def switch_at(number: int) -> Endpoint:
    """A leaf's addresses; those of the root are number LEAVES."""
    return Endpoint(
        format_mac(0x02_70_34_00_00_00 + number), format_ip(0x0A4DFF00 + number), AGGREGATION_PORT
    )


def rank_at(rank: int) -> Endpoint:
    return Endpoint(format_mac(0x02_00_00_00_00_00 + rank), format_ip(0x0A4D0001 + rank), 49152)


class Tree:
    """Switches, ranks, and the frames between them.

    Args:
        draw: where the order of frames comes from.
        lost: tells of each frame whether it gets lost.
    """

    def __init__(self, draw: random.Random, lost: Callable[[], bool] = lambda: False) -> None:
        program = compiled_files()[0].read_bytes()
        self.leaves = [Pipeline(program) for _ in range(LEAVES)]
        self.root = Pipeline(program)
        levels = [
            (
                Level(f"leaf-{leaf}", tuple(Child((rank,)) for rank in ranks_of(leaf))),
                Level("root", tuple(Child(ranks_of(one), f"leaf-{one}") for one in range(LEAVES))),
            )
            for leaf in range(LEAVES)
        ]
        self.ranks = [
            SlotMachine(
                slots=SLOTS,
                job=JOB,
                rank=rank,
                world_size=WORLD,
                here=rank_at(rank),
                switch=switch_at(rank // RANKS),
                levels=levels[rank // RANKS],
            )
            for rank in range(WORLD)
        ]
        for leaf, pipeline in enumerate(self.leaves):
            self._set_up_leaf(pipeline, leaf)
        self._set_up_root()
        self._draw, self._lost = draw, lost
        self.flying: list[Frame] = []
        self.now = 0.0

    def _set_up_leaf(self, pipeline: Pipeline, leaf: int) -> None:
        own, parent = switch_at(leaf), switch_at(LEAVES)
        _is_own(pipeline, own)
        replicas = []
        for number, rank in enumerate(ranks_of(leaf)):
            at = rank_at(rank)
            key = (number + 1, parse_ip(at.ip), JOB, rank)
            grant = (1 << number, EVERY_RANK, 0, SLOTS, FULL, HALVES, UP)
            pipeline.tables["admission"].insert(Entry(key, 0, "grant_partial", grant))
            _deliver(pipeline, number + 1, "whole", at, rank)
            replicas.append(Replica(number + 1, number + 1))
        pipeline.multicast.insert(FULL, replicas)
        pipeline.multicast.insert(UP, [Replica(UPLINK, UPLINK)])
        _deliver(pipeline, UPLINK, "whole", parent, leaf)
        key = (UPLINK, parse_ip(parent.ip), JOB, leaf)
        down = Entry(key, 0, "pass_down", (EVERY_RANK, 0, SLOTS, FULL))
        pipeline.tables["uplink"].insert(down)

    def _set_up_root(self) -> None:
        _is_own(self.root, switch_at(LEAVES))
        full: list[Replica] = []
        halves: list[Replica] = []
        for leaf in range(LEAVES):
            at = switch_at(leaf)
            key = (leaf + 1, parse_ip(at.ip), JOB, leaf)
            grant = (1 << leaf, EVERY_LEAF, 0, SLOTS, FULL, HALVES)
            self.root.tables["admission"].insert(Entry(key, 0, "grant", grant))
            for part, action in enumerate(("whole", "first_half", "second_half")):
                replica = 1 + 3 * leaf + part
                _deliver(self.root, replica, action, at, leaf)
                (halves if part else full).append(Replica(leaf + 1, replica))
        self.root.multicast.insert(FULL, full)
        self.root.multicast.insert(HALVES, halves)

    def submit(self, arrays: list[Array]) -> list[Array]:
        """Call an all-reduce on all ranks; returns where the results will be."""
        outs = []
        for rank, (machine, array) in enumerate(zip(self.ranks, arrays, strict=True)):
            out = np.full_like(array, -1)
            plan = plans.allreduce(array, Operation.SUM, None, out, None, None, world_size=WORLD)
            sequence = machine.next_sequence
            collective = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=sequence,
                slots=SLOTS,
                timeout=1e6,
                lane_format=plan.lane_format,
                noise=plan.noise(rank, sequence),
            )
            collective.started, collective.deadline = 0.0, np.inf
            machine.submit(collective)
            outs.append(out)
        return outs

    @property
    def over(self) -> bool:
        return all(machine.idle for machine in self.ranks)

    def step(self) -> None:
        """Send what is to be sent, and deliver a frame; where there is none, let timers run out."""
        for rank, machine in enumerate(self.ranks):
            rows = machine.take_sendable()
            machine.sent(rows, self.now)
            leaf = self.leaves[rank // RANKS]
            for row in rows:
                self._put(leaf, rank % RANKS + 1, machine.outgoing.get(int(row)))
        self.now += 1e-5
        if not self.flying:
            self.now = max(self.now, min(machine.next_due for machine in self.ranks)) + 1e-6
            for machine in self.ranks:
                machine.expire(self.now)
            return
        at = self._draw.randrange(len(self.flying))
        self.flying[at], self.flying[-1] = self.flying[-1], self.flying[at]
        whom, port, frame = self.flying.pop()
        if isinstance(whom, SlotMachine):
            buffer = FrameBuffer(1)
            buffer.put(0, frame)
            whom.receive(buffer, 1, self.now)
            return
        for out, copy in whom.process(port, frame):
            if whom is self.root:
                self._put(self.leaves[out - 1], UPLINK, copy)
                continue
            number = self.leaves.index(whom)
            if out == UPLINK:
                self._put(self.root, number + 1, copy)
            else:
                self._put(self.ranks[number * RANKS + out - 1], 0, copy)

    def _put(self, whom: Pipeline | SlotMachine, port: int, frame: bytes) -> None:
        if not self._lost():
            self.flying.append((whom, port, frame))


def ranks_of(leaf: int) -> tuple[int, ...]:
    """The ranks at a leaf."""
    return tuple(range(leaf * RANKS, (leaf + 1) * RANKS))


def _is_own(pipeline: Pipeline, at: Endpoint) -> None:
    entry = Entry((parse_ip(at.ip),), 0, "is_own", (parse_mac(at.mac),))
    pipeline.tables["own_address"].insert(entry)


def _deliver(pipeline: Pipeline, replica: int, action: str, at: Endpoint, number: int) -> None:
    address = (parse_mac(at.mac), parse_ip(at.ip), at.udp_port, number)
    pipeline.tables["delivery"].insert(Entry((replica,), 0, action, address))


def sparse(density: float, blocks: int, generator: np.random.Generator) -> Array:
    """Blocks of int32 of which that share is not zero."""
    rows = generator.integers(1, 1000, (blocks, 256), np.int32)
    rows[generator.random(blocks) >= density] = 0
    return rows.reshape(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| density | rounds | asked for room | frames up more | bytes up more |")
    print("|---|---|---|---|---|")
    for density in (1.0, 0.9, 0.5, 0.2, 0.1, 0.03, 0.01):
        generator = np.random.default_rng(options.seed)
        tree = Tree(random.Random(options.seed))
        arrays = [sparse(density, options.blocks, generator) for _ in range(WORLD)]
        outs = tree.submit(arrays)
        while not tree.over:
            tree.step()
        for out in outs:
            np.testing.assert_array_equal(out, sum(arrays))
        counts = [machine.counts for machine in tree.ranks]
        rounds = counts[0].blocks_announced
        padded = sum(one.padded for one in counts)
        frames = sum(one.frames_sent for one in counts)
        sent = sum(one.bytes_sent for one in counts)
        extra = padded * 1102
        print(
            f"| {density:g} | {rounds} | {padded / (LEAVES * rounds):.1%} | "
            f"{padded / (frames - padded):.1%} | {extra / (sent - extra):.1%} |"
        )


if __name__ == "__main__":
    main()
