# SPDX-License-Identifier: Apache-2.0
"""Slot machines over a tree of compiled programs, frame by frame: docs/protocol.md, "Trees"."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from p4reduce.errors import P4ReduceTimeoutError, WorkerLostError
from p4reduce.protocol.slots import FEW

from bench.worker.room import LEAVES, RANKS, WORLD, Tree, sparse


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {number}")
    return number


# With one rank of each switch that asks for all, or all by themselves.
each_way = pytest.mark.parametrize("few", [1, FEW])


@each_way
@pytest.mark.parametrize("lost", [0.0, 0.05], ids=["lossless", "lossy"])
@pytest.mark.parametrize("density", [1.0, 0.3])
def test_sums_are_exact(seed: int, lost: float, density: float, few: int) -> None:
    draw = random.Random(seed)
    tree = Tree(draw, lambda: draw.random() < lost, few)
    generator = np.random.default_rng(seed)
    for _ in range(2):
        arrays = [sparse(density, 20, generator) for _ in range(WORLD)]
        for out in tree.allreduce(arrays):
            np.testing.assert_array_equal(out, sum(arrays))
    counts = [machine.counts for machine in tree.ranks]
    assert sum(one.padded for one in counts) > 0 or density == 1
    if not lost:
        # Nothing was lost, and to ask for room is no repetition by a timer.
        assert sum(one.retransmissions for one in counts) == 0
        assert all(machine.round_trips.count > 0 for machine in tree.ranks)


def submit_without(tree: Tree, missing: tuple[int, ...], blocks: int) -> list[int]:
    """All ranks but some call an all-reduce; returns which do."""
    submitted = [rank for rank in range(WORLD) if rank not in missing]
    arrays = [np.ones(256 * blocks, np.int32)] * len(submitted)
    tree.submit(arrays, submitted)
    return submitted


def run_without(tree: Tree, missing: tuple[int, ...], blocks: int = 4) -> None:
    """The same, and they wait until their timers have run out twice."""
    submitted = submit_without(tree, missing, blocks)
    while min(tree.ranks[rank].state.tries.max() for rank in submitted) < 3:
        tree.step()


def time_out(tree: Tree, rank: int) -> P4ReduceTimeoutError:
    machine = tree.ranks[rank]
    machine.expire(max(one.deadline for one in machine.collectives.values()))
    assert isinstance(machine.broken, P4ReduceTimeoutError)
    return machine.broken


@each_way
def test_missing_ranks_are_named_wherever_they_are(seed: int, few: int) -> None:
    """Exactly on the own switch; elsewhere those behind the switch that is missing."""
    tree = Tree(random.Random(seed), few=few)
    run_without(tree, (6,))
    here, elsewhere = time_out(tree, 5), time_out(tree, 1)
    assert here.missing == (6,)
    assert "waits for rank 6, which the switch s000009 has not heard" in str(here)
    assert elsewhere.missing == (4, 5, 6, 7)
    assert "waits for ranks 4 to 7 (switch s000009), which the switch s000010 has not heard" in str(
        elsewhere
    )


def test_a_rank_whose_questions_all_go_up_names_the_missing_ones(seed: int) -> None:
    """Its own switch never answers by itself, and passes down what the parent says."""
    tree = Tree(random.Random(seed))
    asking = tree.ranks[0]
    run_without(tree, (6,), blocks=1)
    # As if all of its turns had come first, which hangs on the order of frames.
    asking.state.structure.heard_switch_at = -np.inf
    assert time_out(tree, 0).missing == (4, 5, 6, 7)


@each_way
def test_a_rank_that_left_is_named_on_all_switches(seed: int, few: int) -> None:
    tree = Tree(random.Random(seed), few=few)
    run_without(tree, (6,))
    others = [rank for rank in range(WORLD) if rank != 6]
    for rank in others:
        tree.ranks[rank].ranks_left((6,), tree.now)
    began = tree.now
    while any(tree.ranks[rank].broken is None for rank in others):
        tree.step()
        assert tree.now < began + 10, "somebody does not hear of it"
    for rank in others:
        error = tree.ranks[rank].broken
        assert isinstance(error, WorkerLostError)
        assert error.ranks == (6,)


def test_one_rank_asks_for_its_switch_and_no_other_hears_of_it(seed: int) -> None:
    """While another switch's rank is late: until the next one asks, much later, for itself."""
    tree = Tree(random.Random(seed), few=1)
    submit_without(tree, (6,), 1)
    first, *others = tree.ranks[:RANKS]
    while first.state.tries.max() < 2:
        tree.step()
    assert first.counts.retransmissions > 0
    assert [one.counts.retransmissions for one in others] == [0] * len(others)
    assert [one.counts.statuses for one in (first, *others)] == [0] * RANKS
    while min(one.counts.statuses for one in (first, *others)) == 0:
        tree.step()
    assert [one.counts.retransmissions for one in others] == [1] + [0] * (len(others) - 1)


def test_questions_do_not_grow_with_the_square_of_the_ranks(seed: int) -> None:
    """While another switch's rank is late, each leaf asks once for all of its ranks."""
    tree = Tree(random.Random(seed))
    run_without(tree, (6,), blocks=1)
    repeated = sum(tree.ranks[rank].counts.retransmissions for rank in range(RANKS))
    told = sum(tree.ranks[rank].counts.statuses for rank in range(RANKS))
    # Each repetition has an answer of its own; one in so many continues, and comes back to all.
    assert told <= repeated + repeated // RANKS * RANKS + RANKS
    assert LEAVES * RANKS == WORLD
