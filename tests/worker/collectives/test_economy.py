# SPDX-License-Identifier: Apache-2.0
"""What zero skipping saves, and what it costs: bytes counted by the switch at its ports.

Timers may repeat frames though none was lost, as ranks are threads here and wait for each other.
The workers know how many bytes of theirs were repetitions, and those are taken off.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from worker_system import DEADLINE, System, wait_for

BLOCK = 256  # float32 lanes
SLOTS = 32  # the controller's default
ATTEMPTS = 5

Masks = npt.NDArray[np.bool_]
"""Who has anything in which block; shape (ranks, blocks)."""


@dataclass(frozen=True)
class Moved:
    """What one collective moved through one rank's port, in bytes of whole frames.

    Attributes:
        up: what the switch admitted, without repetitions.
        down: what the switch multicast: results, but not answers to repetitions.
    """

    up: int
    down: int


def moved(system: System, cases: list[Masks]) -> list[list[Moved]]:
    """All-reduce a float32 array for each case; count, and compare with what the workers count.

    Returns one list for each case, by rank.
    """
    for _ in range(ATTEMPTS):
        lost: list[int] = []
        found = _moved(system, cases, lost)
        if not any(lost):
            return found
    pytest.skip(f"the switch did not take all frames in {ATTEMPTS} attempts: the machine is busy")


def _moved(system: System, cases: list[Masks], lost: list[int]) -> list[list[Moved]]:
    """The same; appends how many frames each rank sent in vain. Of no use where there are any."""
    world = len(cases[0])
    meeting = threading.Barrier(world, timeout=DEADLINE)

    def counted(comm: p4reduce.Communicator) -> tuple[pb.RankStatistics, p4reduce.Statistics]:
        """Of this rank, at a moment when no rank has anything under way."""

        def at_switch() -> pb.RankStatistics:
            request = pb.GetStatisticsRequest(job=comm.job)
            answer = system.control.call(
                system.control.stub.GetStatistics, request, timeout=DEADLINE
            )
            return answer.ranks[comm.rank]

        meeting.wait()
        seen: list[tuple[int, int]] = []

        def is_over() -> bool:
            seen.append((at_switch().frames_up, comm.stats.frames_sent))
            return seen[-1][0] == seen[-1][1] or seen[-20:] == [seen[-1]] * 20

        wait_for(is_over, "all frames are counted")
        lost.append(seen[-1][1] - seen[-1][0])
        counts = at_switch(), comm.stats
        meeting.wait()
        return counts

    def work(comm: p4reduce.Communicator) -> list[Moved]:
        comm.barrier()
        result = []
        switch_was, was = counted(comm)
        for masks in cases:
            values = np.arange(1, world + 1, dtype=np.float32)[:, None] * masks
            total = comm.allreduce(np.repeat(values[comm.rank], BLOCK))
            assert np.array_equal(total, np.repeat(values.sum(axis=0), BLOCK))
            switch_now, now = counted(comm)
            if any(lost):
                continue
            up = switch_now.bytes_up - switch_was.bytes_up
            down = switch_now.bytes_down - switch_was.bytes_down
            assert up == now.bytes_sent - was.bytes_sent
            repeated = now.retransmissions - was.retransmissions
            answers = now.bytes_received - was.bytes_received - down
            # An answer may be lost where queues are short, but then it is asked for again.
            assert answers <= repeated * PAYLOAD_FRAME_BYTES
            assert repeated or not answers
            filled = now.blocks_sent - was.blocks_sent
            bare = now.frames_sent - was.frames_sent - repeated - filled
            first_tries = filled * PAYLOAD_FRAME_BYTES + bare * EMPTY_FRAME_BYTES
            assert first_tries + repeated * EMPTY_FRAME_BYTES <= up
            assert up <= first_tries + repeated * PAYLOAD_FRAME_BYTES
            result.append(Moved(first_tries, down))
            switch_was, was = switch_now, now
        return result

    return [list(case) for case in zip(*system.run(world, work), strict=True)]


def random_masks(rng: np.random.Generator, world: int) -> Masks:
    """Any density, and any share of the blocks that all ranks have."""
    blocks = int(rng.integers(SLOTS, 1200))
    density, shared = 0.01 ** rng.random(), rng.random()
    print(f"{world} ranks, {blocks} blocks, density {density:.3f}, {shared:.3f} of them shared")
    common = rng.random(blocks) < density * shared
    return common | (rng.random((world, blocks)) < density * (1 - shared))


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 5])
def test_each_rank_pays_for_its_own_blocks(
    system: System, rng: np.random.Generator, world: int
) -> None:
    nothing, everything = np.zeros((world, 300), np.bool_), np.ones((world, 300), np.bool_)
    cases = [nothing, everything, *(random_masks(rng, world) for _ in range(3))]
    for masks, ranks in zip(cases, moved(system, cases), strict=True):
        union = int(masks.any(axis=0).sum())
        opening = SLOTS * EMPTY_FRAME_BYTES
        for rank, one in enumerate(ranks):
            own = int(masks[rank].sum())
            empty = (union - own) * EMPTY_FRAME_BYTES
            assert one.up == own * PAYLOAD_FRAME_BYTES + empty + opening
            # Where a rank without the block is last, its sums come in two frames.
            least = union * PAYLOAD_FRAME_BYTES + opening
            assert least <= one.down <= 1.1 * least
        if masks.all():
            assert {one.down for one in ranks} == {least}


@pytest.mark.parametrize(("overlap", "limit"), [("independent", 0.05), ("aligned", 0.02)])
def test_one_percent_of_the_blocks(
    system: System, rng: np.random.Generator, overlap: str, limit: float
) -> None:
    """Of 8 MB; bench/sparse/traffic.py does the same with 100 MB."""
    world, blocks = 4, 8_000_000 // 1024
    masks = np.zeros((world, blocks), np.bool_)
    chosen = [rng.choice(blocks, blocks // 100, replace=False) for _ in range(world)]
    for rank in range(world):
        masks[rank, chosen[rank if overlap == "independent" else 0]] = True
    for one in moved(system, [masks])[0]:
        assert one.up <= limit * 8_000_000
        assert one.down <= limit * 8_000_000
