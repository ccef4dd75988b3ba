# SPDX-License-Identifier: Apache-2.0
"""Classes of collectives: a higher one takes the link, and a lower one never stands still."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from one_process import OneProcess
from p4reduce.protocol.slots import SlotMachine
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation, class_slots

HERE = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
SHAPES = 3


def collective(
    sequence: int, blocks: int, priority: int, slots: int, urgent: Sequence[int]
) -> Collective:
    array = np.full(blocks * 256, sequence + 1, np.int32)
    plan = plans.allreduce(array, Operation.SUM, None, array.copy(), world_size=2)
    plan = plan.with_priority(priority)
    own = class_slots(slots, urgent)[priority]
    return Collective(
        plan.call,
        plan.source,
        plan.target,
        sequence=sequence,
        slots=len(own),
        first_slot=own.start,
        timeout=1e9,
    )


class System(OneProcess):
    """Two ranks that call the same at the same time."""

    def __init__(self, rng: np.random.Generator, slots: int, urgent: Sequence[int]) -> None:
        super().__init__(2, slots, rng, urgent=urgent)
        self._calls = 0

    def call(self, blocks: int, priority: int) -> list[Collective]:
        """Return it as each rank has it."""
        made = [
            collective(self._calls, blocks, priority, self.slots, self.urgent)
            for _ in self.machines
        ]
        for machine, one in zip(self.machines, made, strict=True):
            machine.submit(one)
        self._calls += 1
        return made

    def run(self, made: Sequence[Collective]) -> None:
        """Until these are over. All wait for each other if nothing flies; no timer runs out."""
        while not all(one.done() for one in made):
            assert self.step(), "all wait for each other"


def test_a_full_window_lets_a_higher_class_out_first() -> None:
    slots, urgent = 12, (4, 2)
    machine = SlotMachine(
        slots=slots, urgent=urgent, job=1, rank=0, world_size=2, here=HERE, switch=SWITCH
    )
    machine.window_size = 3
    machine.submit(collective(0, 6, 0, slots, urgent))
    assert (machine.take_sendable() // SHAPES).tolist() == [0, 1, 2]
    machine.submit(collective(1, 4, 1, slots, urgent))
    assert (machine.take_sendable() // SHAPES).tolist() == [6, 7, 8]
    machine.submit(collective(2, 2, 2, slots, urgent))
    assert (machine.take_sendable() // SHAPES).tolist() == [10, 11]
    machine.window_size = 12
    assert (machine.take_sendable() // SHAPES).tolist() == [9, 3, 4, 5]


def test_the_first_slot_of_each_class_is_never_held_back() -> None:
    slots, urgent = 6, (2, 2)
    machine = SlotMachine(
        slots=slots, urgent=urgent, job=1, rank=0, world_size=2, here=HERE, switch=SWITCH
    )
    machine.window_size = 1
    for priority in (2, 1, 0):
        machine.submit(collective(2 - priority, 2, priority, slots, urgent))
    assert (machine.take_sendable() // SHAPES).tolist() == [4, 2, 0]


def blocks_done(system: System, priority: int) -> int:
    """Rounds of a class's slots that rank 0 has had answered."""
    own = class_slots(system.slots, system.urgent)[priority]
    return int(system.machines[0].state.next_round[own.start : own.stop].astype(np.int64).sum())


def test_a_higher_class_takes_the_link_from_lower_ones(rng: np.random.Generator) -> None:
    """Frames take turns at random. With equal rights all classes would get as far."""
    system = System(rng, 24, (8, 8))
    low, middle = system.call(2000, 0), system.call(2000, 1)
    for _ in range(800):
        assert system.step()
    assert not any(one.done() for one in low + middle)
    before = [blocks_done(system, priority) for priority in range(3)]
    assert before[0] < before[1] / 2
    high = system.call(400, 2)
    system.run(high)
    gone = [blocks_done(system, priority) - before[priority] for priority in range(3)]
    assert gone[2] == 400 + 8
    assert all(8 < number < 400 / 2 for number in gone[:2])  # a slot each, of 8
    system.run(middle + low)


def test_a_lower_class_ends_beside_endless_higher_ones(rng: np.random.Generator) -> None:
    system = System(rng, 12, (4, 4))
    low = system.call(20, 0)
    others = {1: system.call(30, 1), 2: system.call(30, 2)}
    calls = 0
    while not all(one.done() for one in low):
        assert system.step()
        for priority, running in others.items():
            if all(one.done() for one in running):
                others[priority] = system.call(30, priority)
                calls += 1
        assert calls < 200
    for one in low:
        assert one.error is None


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_call_in_turns_do_not_wait_for_each_other(
    rng: np.random.Generator, first: int
) -> None:
    """One rank has a higher class under way that the other calls only after a lower one."""
    system = System(rng, 8, (4,))
    lows = [collective(0, 40, 0, 8, (4,)) for _ in range(2)]
    highs = [collective(1, 40, 1, 8, (4,)) for _ in range(2)]
    ahead, behind = system.machines[first], system.machines[1 - first]
    ahead.submit(lows[0])
    ahead.submit(highs[0])
    behind.submit(lows[1])
    system.run(lows)
    assert not any(one.done() for one in highs)
    behind.submit(highs[1])
    system.run(highs)
