# SPDX-License-Identifier: Apache-2.0
"""What the controller shows of slots: send these contributions, see exactly these states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from controller_harness import RunningController, SwitchProcess, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_controller.fabric.slots import SwitchSlotState, read_slots

Start = Callable[..., RunningController]


def shown(controller: RunningController) -> list[pb.Slot]:
    """The slots of the only job."""
    [job] = controller.call("GetSlots").jobs
    return list(job.slots)


def test_slots_of_a_job(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch)
    assert not controller.call("GetSlots").jobs
    ranks = controller.running(switch, 3, slots=4)
    assert [slot.activity for slot in shown(controller)] == [pb.FREE] * 4

    switch.plug(ranks[0].port).send(ranks[0].frame(slot=1, round=7, block=5, tag=1))
    eventually(lambda: shown(controller)[1].activity == pb.COLLECTING, "rank 0 is heard")
    slot = shown(controller)[1]
    assert (slot.slot, slot.round, slot.block, slot.heard) == (1, 7, 5, 1)
    assert list(slot.missing_ranks) == [1, 2]

    for rank in ranks[1:]:
        switch.plug(rank.port).send(rank.frame(slot=1, round=7, block=5, tag=1))
    eventually(lambda: shown(controller)[1].activity == pb.COMPLETE, "all are heard")
    assert [slot.activity for slot in shown(controller)] == [
        pb.FREE,
        pb.COMPLETE,
        pb.FREE,
        pb.FREE,
    ]


def test_one_job_by_its_name(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch)
    controller.running(switch, 1, slots=2, job="a")
    controller.running(switch, 1, slots=2, job="b")
    assert [job.job for job in controller.call("GetSlots", job="b").jobs] == ["b"]
    [slots] = controller.call("GetSlots", job="b").jobs
    assert [slot.slot for slot in slots.slots] == [2, 3]


class Registers:
    """A switch of which only the cells of one slot are known.

    Args:
        versions: job, round, missing ranks and block of each of the slot's two versions.
    """

    def __init__(self, *versions: tuple[int, int, int, int]) -> None:
        self.versions = versions

    def read_cells(self, registers: Sequence[str], indices: Sequence[int]) -> list[list[int]]:
        at = [("jobs", "rounds", "missing_ranks", "blocks").index(name) for name in registers]
        return [[self.versions[index % 2][field] for index in indices] for field in at]


def of_slot(number: int, job: int, *versions: tuple[int, int, int, int]) -> SwitchSlotState:
    [state] = read_slots(cast(SwitchClient, Registers(*versions)), [number], job)
    return state


@pytest.mark.parametrize(
    ("rounds", "newest"),
    [((4, 5), 5), ((6, 5), 6), ((0xFFFFFFFE, 0xFFFFFFFF), 0xFFFFFFFF), ((0, 0xFFFFFFFF), 0)],
)
def test_the_newer_version_counts_over_the_wrap_too(rounds: tuple[int, int], newest: int) -> None:
    versions = [(9, number, 1, 2) for number in rounds]
    assert of_slot(3, 9, *versions) == SwitchSlotState(3, 9, newest, 2, 1)


def test_a_version_of_another_job_does_not_count() -> None:
    assert of_slot(3, 9, (8, 7, 1, 2), (9, 1, 1, 2)) == SwitchSlotState(3, 9, 1, 2, 1)
    assert of_slot(3, 9, (8, 7, 1, 2), (7, 1, 1, 2)) == SwitchSlotState(3)
