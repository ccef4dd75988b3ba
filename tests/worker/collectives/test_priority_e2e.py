# SPDX-License-Identifier: Apache-2.0
"""`priority=`: urgent collectives have slots of their own, and wait for no bulk one."""

from __future__ import annotations

from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.environment import URGENT_SLOTS_ENVIRONMENT
from worker_system import System, at_once, outcome

EMBEDDED = pytest.mark.parametrize("system", ["embedded"], indirect=True)
SMALL = 700
LARGE = 1 << 20
BULK = 4


def sums_of(comm: p4reduce.Communicator, number: int, elements: int) -> float:
    """What all ranks add up to, if each gives its rank plus a number."""
    return float(sum(range(comm.size)) + comm.size * number)


@pytest.mark.long
@pytest.mark.parametrize("faults", [0, 2], indirect=True)
def test_an_urgent_collective_overtakes(system: System, faults: int) -> None:
    """Called last, and over before the bulk ones that were called first."""
    fast = system.interface(1).startswith("unix:") and not faults
    elements = LARGE if fast else LARGE // 16

    def work(comm: p4reduce.Communicator) -> None:
        assert (comm.slots, comm.urgent_slots) == (24, 8)
        for step in range(2):
            bulk = [
                comm.allreduce_async(np.full(elements, comm.rank + number, np.float32))
                for number in range(BULK)
            ]
            small = np.full(SMALL, comm.rank + step, np.float32)
            urgent = comm.allreduce_async(small, out=small, priority="urgent")
            total = urgent.wait()
            assert not bulk[-1].done()
            assert (total == sums_of(comm, step, SMALL)).all()
            for number, handle in enumerate(bulk):
                assert (handle.wait() == sums_of(comm, number, elements)).all()
            # The same on each side of the bulk ones' end.
            one = comm.allreduce(np.ones(9), priority=p4reduce.Priority.URGENT)
            assert (one == comm.size).all()

    system.run(2, work, slots=24, urgent_slots=8)


@EMBEDDED
def test_in_any_order_with_any_sizes(system: System, rng: np.random.Generator) -> None:
    """Sizes below and above the slots of either class, waited for in another order on each rank."""
    count = 120
    sizes = rng.integers(0, 40 * 256, count)
    priorities = rng.choice([0, 0, 0, 1, 2, 3], count).tolist()
    seeds = rng.integers(1 << 32, size=2)

    def work(comm: p4reduce.Communicator) -> None:
        order = np.random.default_rng(seeds[comm.rank]).permutation(count)
        handles = [
            comm.allreduce_async(
                np.full(size, comm.rank + number, np.int32),
                priority=priority,
            )
            for number, (size, priority) in enumerate(zip(sizes, priorities, strict=True))
        ]
        for number in order:
            expected = np.full(sizes[number], sums_of(comm, int(number), 0))
            assert np.array_equal(handles[number].wait(), expected)
        assert comm.stats.invalid == 0

    system.run(2, work, slots=12, urgent_slots=[2, 1, 3])


@EMBEDDED
def test_all_classes_give_the_same_bits(system: System, rng: np.random.Generator) -> None:
    numbers = rng.standard_normal((2, 5000), np.float32)

    def work(comm: p4reduce.Communicator) -> list[bytes]:
        assert comm.class_slots == (4, 1, 2, 1, 1, 1, 1, 1)
        mine = numbers[comm.rank]
        handles = [comm.allreduce_async(mine, priority=k) for k in (*range(8), "bulk")]
        return [handle.wait().tobytes() for handle in handles]

    results = system.run(2, work, slots=12, urgent_slots=[1, 2, 1, 1, 1, 1, 1])
    assert len({one for each in results for one in each}) == 1


@EMBEDDED
def test_children_inherit_and_override(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URGENT_SLOTS_ENVIRONMENT, "3, 1")

    def work(comm: p4reduce.Communicator) -> None:
        with comm.dup() as same, comm.dup(slots=9, urgent_slots=0) as none:
            assert same.class_slots == (comm.slots - 4, 3, 1)
            assert (none.slots, none.urgent_slots) == (9, 0)
            assert (same.allreduce(np.ones(5), priority="urgent") == 2).all()
            assert (same.allreduce(np.ones(5), priority=2) == 2).all()
            with pytest.raises(ValueError, match=r"priority=3 .* 2 of them have some here"):
                same.allreduce(np.ones(5), priority=3)
        alone = comm.split(comm.rank)
        assert alone is not None
        assert (alone.allreduce(np.ones(5), priority="urgent") == 1).all()

    system.run(2, work)


@EMBEDDED
@pytest.mark.parametrize(
    ("priority", "error", "words"),
    [
        ("first", ValueError, "priority='first': 'bulk', 'urgent' or a class from 0 to 7"),
        (8, ValueError, "priority=8: 'bulk', 'urgent' or a class from 0 to 7 is needed"),
        (True, TypeError, "priority=True: 'bulk', 'urgent' or a class from 0 to 7 is needed"),
        (1.0, TypeError, "priority=1.0: "),
        ("urgent", ValueError, r"priority=1 needs slots .*init\(urgent_slots=\)"),
    ],
)
def test_wrong_priorities(
    alone: p4reduce.Communicator, priority: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        alone.allreduce(np.ones(3), priority=priority)
    alone.barrier()


@EMBEDDED
def test_wrong_numbers_of_urgent_slots(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, error in ((-1, ValueError), (1024, ValueError), ("8", TypeError)):
        with pytest.raises(error, match="urgent_slots"):
            system.init(0, 1, system.new_job(), urgent_slots=number)
    with pytest.raises(p4reduce.AdmissionError, match=r"8 urgent slots of 8 .*at least one"):
        system.init(0, 1, system.new_job(), slots=8, urgent_slots=8)
    job = system.new_job()
    errors = at_once(
        [
            lambda rank=rank: outcome(
                lambda: system.init(rank, 2, job, urgent_slots=rank, timeout=3.0)
            )
            for rank in range(2)
        ]
    )
    assert any(
        isinstance(error, p4reduce.AdmissionError)
        and "all ranks must ask for the same" in str(error)
        for error in errors
    )
    for text in ("many", "8,", "8,0", "1,1,1,1,1,1,1,1", "1000,24"):
        monkeypatch.setenv(URGENT_SLOTS_ENVIRONMENT, text)
        with pytest.raises(p4reduce.ConfigurationError, match=URGENT_SLOTS_ENVIRONMENT):
            system.init(0, 1, system.new_job())
