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
from p4reduce.protocol.slots import FEW, SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import PAYLOAD_FRAME_BYTES
from p4reduce.wire.frames import FrameBuffer
from p4reduce_switch.pipeline import Pipeline

from bench.scale.shape import Shape
from bench.scale.switches import address_of, lay_out_job, make_switch

LEAVES, RANKS, SLOTS, JOB = 2, 4, 8, 9
WORLD = LEAVES * RANKS
SHAPE = Shape((RANKS, LEAVES))
UPLINK = SHAPE.uplink(SHAPE.levels[1][0])  # a leaf's port; at the root, leaf n is at port n + 1

Array = npt.NDArray[np.int32]
Frame = tuple[Pipeline | SlotMachine, int, bytes]  # to whom, by which port


class Tree:
    """Switches, ranks, and the frames between them.

    Args:
        draw: where the order of frames comes from.
        lost: called for each frame; returns whether the frame is lost.
        few: as of `SlotMachine`.
    """

    def __init__(
        self, draw: random.Random, lost: Callable[[], bool] = lambda: False, few: int = FEW
    ) -> None:
        entities = lay_out_job(SHAPE, JOB, SLOTS)
        *self.leaves, self.root = (
            make_switch(address_of(SHAPE, node), entities[node])
            for node in range(WORLD, SHAPE.root + 1)
        )
        self.ranks = [
            SlotMachine(
                slots=SLOTS,
                job=JOB,
                rank=rank,
                world_size=WORLD,
                here=address_of(SHAPE, rank),
                switch=address_of(SHAPE, leaf),
                levels=SHAPE.levels_above(leaf),
                few=few,
            )
            for leaf in SHAPE.levels[1]
            for rank in SHAPE.children(leaf)
        ]
        self._draw, self._lost = draw, lost
        self.flying: list[Frame] = []
        self.now = 0.0

    def allreduce(self, arrays: list[Array]) -> list[Array]:
        """Run one all-reduce on all ranks to its end, and return the results."""
        outs = self.submit(arrays)
        while not self.over:
            self.step()
        return outs

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
            collective.started, collective.deadline = 0.0, 1e9
            machine.submit(collective)
            outs.append(out)
        return outs

    @property
    def over(self) -> bool:
        return all(machine.idle for machine in self.ranks)

    def step(self) -> None:
        """Send what waits, and deliver a frame. If there is none, let timers run out."""
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
        for out in tree.allreduce(arrays):
            np.testing.assert_array_equal(out, sum(arrays))
        counts = [machine.counts for machine in tree.ranks]
        rounds = counts[0].blocks_announced
        padded = sum(one.padded for one in counts)
        frames = sum(one.frames_sent for one in counts)
        sent = sum(one.bytes_sent for one in counts)
        extra = padded * PAYLOAD_FRAME_BYTES
        print(
            f"| {density:g} | {rounds} | {padded / (LEAVES * rounds):.1%} | "
            f"{padded / (frames - padded):.1%} | {extra / (sent - extra):.1%} |"
        )


if __name__ == "__main__":
    main()
