# SPDX-License-Identifier: Apache-2.0
"""How often a switch of a tree asks for room, and what that costs, by how sparse tensors are.

Two leaves of four ranks each and a root: the compiled program three times, and the slot machine
of each rank, in one process and without loss. What is counted depends on no clock. The order in
which frames arrive is random, so that the last contribution is anybody's.

    python -m bench.worker.room
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from p4reduce.protocol.slots import FEW
from p4reduce.wire.format import PAYLOAD_FRAME_BYTES

from bench.program import Row, read_options, run, tell
from bench.scale.links import Faults, Place
from bench.scale.shape import Shape
from bench.scale.simulation import Simulation

LEAVES, RANKS, SLOTS = 2, 4, 8
WORLD = LEAVES * RANKS
SHAPE = Shape((RANKS, LEAVES))

Array = npt.NDArray[np.int32]


class Tree:
    """Switches, ranks, and the frames between them, in an order that is drawn.

    `lost` is called for each frame; it returns whether the frame is lost. `few` is `SlotMachine`'s.
    """

    def __init__(
        self, draw: random.Random, lost: Callable[[], bool] = lambda: False, few: int = FEW
    ) -> None:
        job = Simulation(SHAPE, SLOTS, Faults(), 0, few)
        self._ranks, self._switches, self._ends = job.ranks, job.switches, SHAPE.ends()
        self.ranks = [one.machine for one in self._ranks]
        self._draw, self._lost = draw, lost
        self.flying: list[tuple[Place, bytes]] = []
        self.now = 0.0

    def allreduce(self, arrays: list[Array]) -> list[Array]:
        """Run one all-reduce on all ranks to its end, and return the results."""
        outs = self.submit(arrays)
        while not all(machine.idle for machine in self.ranks):
            self.step()
        return outs

    def submit(self, arrays: list[Array], ranks: Iterable[int] = range(WORLD)) -> list[Array]:
        """Call an all-reduce on these ranks; returns where the results will be."""
        return [self._ranks[rank].submit(mine) for rank, mine in zip(ranks, arrays, strict=True)]

    def step(self) -> None:
        """Send what waits, and deliver a frame. If there is none, let timers run out."""
        for node, rank in enumerate(self._ranks):
            self._send(node, rank.send(self.now))
        self.now += 1e-5
        if not self.flying:
            self.now = max(self.now, min(machine.next_due for machine in self.ranks)) + 1e-6
            for machine in self.ranks:
                machine.expire(self.now)
            return
        at = self._draw.randrange(len(self.flying))
        self.flying[at], self.flying[-1] = self.flying[-1], self.flying[at]
        (node, port), frame = self.flying.pop()
        if node < WORLD:
            self._ranks[node].receive(frame, self.now)
        else:
            self._send(node, self._switches[node - WORLD].process(port, frame))

    def _send(self, node: int, copies: Iterable[tuple[int, bytes]]) -> None:
        for port, frame in copies:
            if not self._lost():
                self.flying.append((self._ends[Place(node, port)], frame))


def sparse(density: float, blocks: int, generator: np.random.Generator) -> Array:
    """Blocks of int32 of which that share is not zero."""
    rows = generator.integers(1, 1000, (blocks, 256), np.int32)
    rows[generator.random(blocks) >= density] = 0
    return rows.reshape(-1)


def row(density: float, blocks: int, seed: int) -> Row:
    """Return the shares at a density."""
    generator = np.random.default_rng(seed)
    tree = Tree(random.Random(seed))
    arrays = [sparse(density, blocks, generator) for _ in range(WORLD)]
    for out in tree.allreduce(arrays):
        np.testing.assert_array_equal(out, sum(arrays))
    counts = [machine.counts for machine in tree.ranks]
    rounds = counts[0].blocks_announced
    names = ("padded", "frames_sent", "bytes_sent")
    padded, frames, sent = (sum(getattr(one, name) for one in counts) for name in names)
    extra = padded * PAYLOAD_FRAME_BYTES
    return {
        "density": density,
        "rounds": rounds,
        "asked_for_room": padded / (LEAVES * rounds),
        "frames_up_more": padded / (frames - padded),
        "bytes_up_more": extra / (sent - extra),
    }


def main() -> None:
    options = read_options(__doc__, blocks=400, seed=1)
    densities = (1.0, 0.9, 0.5, 0.2, 0.1, 0.03, 0.01)
    tell(options, (row(density, options.blocks, options.seed) for density in densities))


if __name__ == "__main__":
    run(main)
