# SPDX-License-Identifier: Apache-2.0
"""Coded and partial sums while a rank, the switch or the controller is lost; and in a tree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import p4reduce
import p4reduce_lab
import pytest
from fault_system import PATIENT_LEASE, FaultSystem, fault_system_with
from late_ranks import wait_until_behind
from p4reduce.late import FractionalRepetition, PartialSums
from worker_system import DEADLINE, at_once, wait_for

fault_system = fault_system_with(lambda: PATIENT_LEASE, "module")

WORLD = 4
PARTS = np.arange(WORLD * 3000, dtype=np.int32).reshape(WORLD, 3000)
TOTAL = PARTS.sum(0, dtype=np.int32)

# Rank 1 in a process of its own, which is killed while it takes part in sums.
DOOMED = """
import sys, numpy as np, p4reduce
from p4reduce.late import FractionalRepetition
controller, job, interface = sys.argv[1:]
with p4reduce.init(1, 4, controller, job, interface=interface) as comm:
    with FractionalRepetition(comm, 2, timeout=60) as coded:
        while True:
            coded.sum(lambda part: np.arange(3000 * part, 3000 * (part + 1), dtype=np.int32))
            print("summed", flush=True)
"""


def test_a_rank_that_is_killed_costs_no_bit(broken: FaultSystem) -> None:
    """The other rank of its group has its parts; and all know that it is lost."""
    job = broken.new_job()
    command = [sys.executable, "-c", DOOMED, broken.controller, job, broken.interface(2)]
    doomed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    steps_after = 3

    def rank(number: int) -> int:
        with broken.init(number, WORLD, job) as comm:
            sums = after = 0
            with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:
                while after < steps_after:
                    total = coded.sum(lambda part: PARTS[part])
                    assert np.array_equal(total.result, TOTAL)
                    sums += 1
                    after += bool(coded.lost)
                assert coded.lost == (1,)
                assert 1 in total.missing
                assert total.members in ((0, 2), (0, 3))
            return sums

    def kill() -> int:
        assert doomed.stdout is not None
        for _ in range(3):
            assert doomed.stdout.readline() == "summed\n"
        os.kill(doomed.pid, signal.SIGKILL)
        return 0

    try:
        sums = at_once([kill, *(lambda number=number: rank(number) for number in (0, 2, 3))])[1:]
    finally:
        doomed.kill()
        doomed.communicate()
    assert len(set(sums)) == 1
    assert sums[0] >= 3 + steps_after


def test_the_switch_and_the_controller_are_lost_under_way(broken: FaultSystem) -> None:
    """Sums continue with the same bits, with a rank that is late time and again."""
    counts = [0] * WORLD
    over = threading.Event()

    def work(comm: p4reduce.Communicator) -> tuple[int, int]:
        with FractionalRepetition(comm, 2, timeout=DEADLINE) as coded:
            while True:
                # Whether it is over, the first rank says, in a part of its own group.
                ending = over.is_set() if comm.rank in (0, 1) else False
                if comm.rank == 3 and counts[3] % 4 == 0:
                    wait_until_behind(coded)

                def compute(part: int, ending: bool = ending) -> np.ndarray:
                    return np.append(PARTS[part], np.int32(ending))

                total = coded.sum(compute)
                assert np.array_equal(total.result[:-1], TOTAL)
                counts[comm.rank] += 1
                if total.result[-1]:
                    return counts[comm.rank], len(coded.lost)

    def further() -> None:
        before = counts[0]
        wait_for(lambda: counts[0] > before + 2, "further sums")

    results = _while_broken(broken, work, further, over)
    assert len({count for count, _ in results}) == 1
    assert not any(lost for _, lost in results)


def test_sums_without_the_late_go_on_after_a_loss(broken: FaultSystem) -> None:
    """Each is of its members and of nobody else, though the switch and the controller go."""
    counts = [0] * WORLD
    over = threading.Event()

    def work(comm: p4reduce.Communicator) -> tuple[int, int]:
        missed = 0
        with PartialSums(comm, timeout=DEADLINE) as sums:
            while True:
                if comm.rank == 3 and counts[3] % 4 == 0 and not over.is_set():
                    wait_until_behind(sums)
                mine = np.append(PARTS[comm.rank], np.int32(comm.rank == 0 and over.is_set()))
                total = sums.allreduce(mine, deadline=0.0, at_least=WORLD - 1)
                wanted = PARTS[list(total.members)].sum(0, dtype=np.int32)
                assert np.array_equal(total.result[:-1], wanted)
                counts[comm.rank] += 1
                missed += bool(total.missing)
                if total.result[-1]:
                    comm.barrier()
                    return missed, len(sums.lost)

    def further() -> None:
        before = counts[0]
        wait_for(lambda: counts[0] > before + 2, "further sums")

    results = _while_broken(broken, work, further, over)
    assert len(set(results)) == 1
    assert results[0][0] > 0
    assert not any(lost for _, lost in results)


def _while_broken(
    broken: FaultSystem,
    work: Callable[[p4reduce.Communicator], tuple[int, int]],
    further: Callable[[], None],
    over: threading.Event,
) -> list[tuple[int, int]]:
    """Run ranks while the switch and then the controller are killed and started again."""
    results: list[tuple[int, int]] = []
    job = threading.Thread(target=lambda: results.extend(broken.run(WORLD, work)), daemon=True)
    job.start()
    further()
    broken.kill_switch()
    broken.start_switch()
    further()
    broken.kill_controller()
    further()
    broken.start_controller()
    further()
    over.set()
    job.join(2 * DEADLINE)
    assert len(results) == WORLD
    return results


@pytest.mark.long
def test_the_ranks_below_a_leaf_of_a_tree_are_a_group() -> None:
    """One rank of each leaf is enough, whichever it is."""

    def work(comm: p4reduce.Communicator) -> list[tuple[int, ...]]:
        members = []
        with FractionalRepetition(comm, groups="switches", timeout=DEADLINE) as coded:
            assert coded.groups == ((0, 1), (2, 3))
            assert comm.leaf == coded.parts
            for late in ((), (0,), (3,), (1, 2), (0, 3)):
                if comm.rank in late:
                    wait_until_behind(coded)
                total = coded.sum(lambda part: PARTS[part])
                assert np.array_equal(total.result, TOTAL)
                assert not set(total.members) & set(late)
                members.append(total.members)
                comm.barrier()
        return members

    with p4reduce_lab.local(tree="2x2") as network:
        runs = network.run(work)
    assert all(members == runs[0] for members in runs)
    assert runs[0][3:] == [(0, 3), (1, 2)]
