# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stopped or cut off, and how those who are left continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from cables import Cables
from fault_system import EMBEDDED, FaultSystem
from worker_system import DEADLINE, at_once, in_time, outcome, silence, wait_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "elastic.py"
ONES = np.ones(3000, np.float32)

# A rank in a process of its own: it says how its second all-reduce ended.
RANK = """
import sys, numpy as np, p4reduce
controller, job, rank, size, interface = sys.argv[1:]
with p4reduce.init(int(rank), int(size), controller, job, interface=interface) as comm:
    print("joined", flush=True)
    for _ in range(2):
        try:
            print(comm.allreduce(np.ones(3000, np.float32), timeout=5)[0], flush=True)
        except p4reduce.P4ReduceError as error:
            print(type(error).__name__, comm.rank in getattr(error, "ranks", ()), error, flush=True)
"""


class Process:
    """A rank in a process of its own."""

    def __init__(self, system: FaultSystem, job: str, rank: int, size: int) -> None:
        where = (system.controller, job, str(rank), str(size), system.interface(rank + 1))
        command = [sys.executable, "-c", RANK, *where]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            # Until all its threads stand still, it may well complete a collective.
            status = Path(f"/proc/{self.process.pid}/status")
            wait_for(lambda: "State:\tT" in status.read_text(), "the rank has stopped")


@pytest.fixture
def trio(broken: FaultSystem) -> Iterator[tuple[list[p4reduce.Communicator], Process, str]]:
    """Ranks 0 and 2 of three, rank 1 in a process of its own, and the job's name."""
    job = broken.new_job()
    other = Process(broken, job, 1, 3)
    comms = at_once([lambda rank=rank: broken.init(rank, 3, job) for rank in (0, 2)])
    assert other.line() == "joined"
    try:
        for result in at_once([lambda comm=comm: comm.allreduce(ONES) for comm in comms]):
            assert (result == 3).all()
        assert other.line() == "3.0"
        yield comms, other, job
    finally:
        other.process.kill()
        other.process.communicate()
        for comm in comms:
            comm.close()


def sum_up(comms: list[p4reduce.Communicator]) -> None:
    """All-reduce, with all ranks of the job."""
    for result in at_once([lambda comm=comm: comm.allreduce(ONES) for comm in comms]):
        assert (result == len(comms)).all()


def fail(comms: list[p4reduce.Communicator]) -> list[p4reduce.WorkerLostError]:
    """All-reduce, which a lost rank keeps from succeeding."""
    errors = at_once([lambda comm=comm: outcome(lambda: comm.allreduce(ONES)) for comm in comms])
    for error in errors:
        assert isinstance(error, p4reduce.WorkerLostError), error
    return errors


def test_survivors_go_on_with_fewer_ranks(
    broken: FaultSystem, trio: tuple[list[p4reduce.Communicator], Process, str]
) -> None:
    comms, other, _ = trio
    other.send(signal.SIGKILL)
    for error in fail(comms):
        assert error.ranks == (1,)
        assert "rank 1" in str(error)
    with pytest.raises(p4reduce.P4ReduceTimeoutError, match=r"rank 2 .* not asked"):
        in_time(lambda timeout: comms[0].reform(timeout=timeout), 0.2)
    fewer = at_once([comm.reform for comm in comms])  # again, and both
    try:
        assert [(comm.rank, comm.size) for comm in fewer] == [(0, 2), (1, 2)]
        for result in at_once(
            [lambda comm=comm: comm.allreduce(ONES * (1 + comm.rank)) for comm in fewer]
        ):
            assert (result == 3).all()
        assert all(isinstance(outcome(comm.barrier), p4reduce.ClosedError) for comm in comms)
        assert all(isinstance(outcome(comm.reform), p4reduce.ClosedError) for comm in comms)
    finally:
        at_once([comm.close for comm in fewer])


@EMBEDDED
def test_a_replacement_takes_the_place_of_a_killed_rank(
    broken: FaultSystem, trio: tuple[list[p4reduce.Communicator], Process, str]
) -> None:
    comms, other, job = trio
    other.send(signal.SIGKILL)
    fail(comms)
    full = at_once(
        [
            lambda: comms[0].reform(world_size=3),
            lambda: broken.init(1, 3, job, interface=broken.interface(4)),
            lambda: comms[1].reform(world_size=3),
        ]
    )
    try:
        assert [comm.rank for comm in full] == [0, 1, 2]
        state = np.arange(1000.0)
        for result in at_once(
            [lambda comm=comm: comm.broadcast(state * (comm.rank == 0)) for comm in full]
        ):
            assert np.array_equal(result, state)
    finally:
        at_once([comm.close for comm in full])


def test_a_stopped_rank_that_wakes_up_is_told_that_it_was_lost(
    broken: FaultSystem, trio: tuple[list[p4reduce.Communicator], Process, str]
) -> None:
    """Its own deadline has passed meanwhile; that is not what it should blame on the others."""
    comms, other, _ = trio
    other.send(signal.SIGSTOP)
    for error in fail(comms):
        assert error.ranks == (1,)
    fewer = at_once([comm.reform for comm in comms])
    try:
        sum_up(fewer)
        other.send(signal.SIGCONT)
        line = other.line()
        assert line.startswith("WorkerLostError True"), line
        assert "this rank, rank 1, which was itself declared lost" in line
        sum_up(fewer)
    finally:
        at_once([comm.close for comm in fewer])


def test_a_rank_that_is_cut_off_from_the_switch_alone_is_lost(
    broken: FaultSystem, cables: Cables
) -> None:
    """It still reaches the controller, so its lease does not run out."""
    job = broken.new_job()
    comms = at_once([lambda rank=rank: broken.init(rank, 3, job) for rank in range(3)])
    try:
        at_once([comm.barrier for comm in comms])
        cables[2].mute = True
        errors = fail(comms)
        for error in errors:
            assert error.ranks == (2,)
            assert "has heard nothing from the switch" in str(error)
            silent = silence(error)
            assert silent is not None
            assert silent >= broken.lease  # and not before
        assert "rank 2, which was itself declared lost" in str(errors[2])
        fewer = at_once([comm.reform for comm in comms[:2]])
        comms += fewer
        assert [comm.size for comm in fewer] == [2, 2]
    finally:
        at_once([comm.close for comm in comms])


@EMBEDDED
def test_a_rank_that_leaves_makes_room_as_well(broken: FaultSystem) -> None:
    job = broken.new_job()
    comms = at_once([lambda rank=rank: broken.init(rank, 2, job) for rank in range(2)])
    comms[1].close()
    fail(comms[:1])
    with comms[0].reform() as alone:
        assert (alone.rank, alone.size) == (0, 1)
        assert (alone.allreduce(ONES) == 1).all()


@pytest.mark.long
@EMBEDDED
def test_the_example_trains_on_without_the_rank_that_dies(broken: FaultSystem) -> None:
    job = broken.new_job()
    ranks = []
    for rank in range(3):
        environment = {
            "P4REDUCE_RANK": str(rank),
            "P4REDUCE_WORLD_SIZE": "3",
            "P4REDUCE_JOB": job,
            "P4REDUCE_CONTROLLER": broken.controller,
            "P4REDUCE_INTERFACE": broken.interface(rank + 1),
        }
        command = [sys.executable, str(EXAMPLE), "--kill", "1"]
        ranks.append(
            subprocess.Popen(
                command, env=os.environ | environment, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        said = [rank.communicate(timeout=2 * DEADLINE)[0].splitlines() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL, 0]
    assert "rank 1" in said[0][0]
    assert said[0][-1].startswith("rank 0 of 2: 200 steps")
    assert said[2][-1].startswith("rank 1 of 2: 200 steps")
    assert said[0][-1].split("distance")[1] == said[2][-1].split("distance")[1]


# -- What cannot be formed again ------------------------------------------------------------------


@EMBEDDED
def test_a_job_that_runs_is_not_formed_anew(broken: FaultSystem) -> None:
    with (
        broken.init(0, 1, broken.new_job()) as comm,
        pytest.raises(p4reduce.AdmissionError, match="running"),
    ):
        in_time(lambda timeout: comm.reform(timeout=timeout), 0.3)


@EMBEDDED
@pytest.mark.parametrize("world_size", [0, 4097, -1])
def test_the_world_size_is_checked(broken: FaultSystem, world_size: int) -> None:
    with (
        broken.init(0, 1, broken.new_job()) as comm,
        pytest.raises(ValueError, match=f"world_size={world_size}"),
    ):
        comm.reform(world_size=world_size)
