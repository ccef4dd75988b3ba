# SPDX-License-Identifier: Apache-2.0
"""What stalls on switches that are linked: the leaf knows best which rank is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p4reduce.control import control_pb2 as pb
from p4reduce_controller.web.waiting import Stall, Stalls

JOB = 7


def job(leaves: Mapping[int, str]) -> pb.Job:
    """A job whose ranks are at these switches."""
    members = [pb.Member(rank=rank, switch=switch) for rank, switch in leaves.items()]
    return pb.Job(incarnation=JOB, members=members)


def slots(*missing: Sequence[int]) -> pb.Slots:
    """Slots that collect in round 1, and the ranks that each lacks."""
    each = [
        pb.Slot(slot=slot, activity=pb.COLLECTING, round=1, missing_ranks=ranks)
        for slot, ranks in enumerate(missing)
    ]
    return pb.Slots(jobs=[pb.JobSlots(incarnation=JOB, slots=each)])


def stall(leaves: Mapping[int, str], switches: Mapping[str, pb.Slots | None]) -> Stall:
    """What is found when nothing has moved for five seconds."""
    stalls = Stalls()
    assert stalls.update([job(leaves)], switches, 100.0) == {}
    return stalls.update([job(leaves)], switches, 105.0)[JOB]


LEAVES = {0: "leaf-1", 1: "leaf-1", 2: "leaf-2", 3: "leaf-2"}


def test_the_leaf_says_which_rank_of_a_branch_it_is() -> None:
    seen = stall(LEAVES, {"root": slots([2, 3], [2, 3]), "leaf-1": None, "leaf-2": slots([3], [3])})
    assert seen == Stall(5.0, 2, frozenset({3}))


def test_a_branch_of_which_nobody_was_heard_is_missing_as_a_whole() -> None:
    assert stall(LEAVES, {"root": slots([2, 3])}) == Stall(5.0, 1, frozenset({2, 3}))


def test_missing_ranks_below_two_leaves() -> None:
    found = stall(LEAVES, {"leaf-1": slots([0]), "leaf-2": slots([2])})
    assert found == Stall(5.0, 1, frozenset({0, 2}))


def test_slots_that_lack_different_ranks() -> None:
    assert stall(dict.fromkeys(range(3), "only"), {"only": slots([0], [1])}).missing == frozenset()


def test_a_slot_that_goes_on_does_not_stall() -> None:
    stalls = Stalls()
    at = [job({0: "only"})]
    stalls.update(at, {"only": slots([0])}, 100.0)
    later = slots([0])
    later.jobs[0].slots[0].round = 2
    assert stalls.update(at, {"only": later}, 105.0) == {}
