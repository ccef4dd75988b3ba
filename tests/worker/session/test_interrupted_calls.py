# SPDX-License-Identifier: Apache-2.0
"""An exception of a signal handler inside a call: never a wrong sum, on any rank, nor a hang."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import p4reduce
import pytest
from interrupting import Alarm, Place, interrupted, places
from p4reduce.communicator import Communicator
from p4reduce.tensors.sparse import SparseRows
from small_world import TIMEOUT, Office, SmallWorld
from worker_system import DEADLINE, System, at_once, outcome

EVERY = "P4REDUCE_EVERY_BYTECODE"

STEPS = 4
INTERRUPTED = 1  # the step that is
SIZE = 700

Call = Callable[[Communicator, int, int], Any]


@pytest.fixture(scope="module")
def world() -> Iterator[SmallWorld]:
    small = SmallWorld()
    yield small
    small.close()


# What each rank gives in each step: all differ, and so do all their sums.
SHARES = [
    [np.full(SIZE, (1 + step) * 100**rank, np.int32) for step in range(STEPS)] for rank in range(2)
]
ROWS = [
    [SparseRows(np.arange(SIZE), share.reshape(SIZE, 1), (SIZE, 1)) for share in shares]
    for shares in SHARES
]


def total(step: int) -> int:
    return sum(int(shares[step][0]) for shares in SHARES)


def one(comm: Communicator, rank: int, step: int) -> Any:
    return comm.allreduce(SHARES[rank][step])


def in_place(comm: Communicator, rank: int, step: int) -> Any:
    array = SHARES[rank][step].copy()
    try:
        return comm.allreduce(array, out=array)
    except BaseException:
        array[:] = -1  # it is the caller's again
        raise


def handle(comm: Communicator, rank: int, step: int) -> Any:
    return comm.allreduce_async(SHARES[rank][step]).wait()


def patient(comm: Communicator, rank: int, step: int) -> Any:
    """Who has the handle may wait again."""
    running = comm.allreduce_async(SHARES[rank][step])
    try:
        return running.wait()
    except Alarm:
        return running.wait()


def grouped(comm: Communicator, rank: int, step: int) -> Any:
    array = SHARES[rank][step]
    return np.concatenate(comm.grouped_allreduce([array[:30], array[30:300], array[300:]]))


def sparse(comm: Communicator, rank: int, step: int) -> Any:
    return comm.allreduce_sparse(ROWS[rank][step], dense=True)


def gathered(comm: Communicator, rank: int, step: int) -> Any:
    both = comm.allgather(SHARES[rank][step])
    return both[:SIZE] + both[SIZE:]


CALLS: list[Call] = [one, in_place, handle, patient, grouped, sparse, gathered]


def steps(call: Call, comm: Communicator, rank: int, said: list[Any], *which: int) -> None:
    """Go from step to step as a program that catches everything; errors are the results then."""
    for step in which:
        said.append(outcome(lambda: call(comm, rank, step)))  # noqa: B023, PERF401


def run(world: SmallWorld, call: Call, place: Place) -> None:
    before = our_threads()
    office, comms = world.job()
    other: list[Any] = []
    everything = (call, comms[1], 1, other, *range(STEPS))
    thread = threading.Thread(target=steps, args=everything, daemon=True)
    thread.start()
    mine: list[Any] = []
    step = functools.partial(steps, call, comms[0], 0, mine)
    step(0)
    if interrupted(lambda: step(INTERRUPTED), place):
        if comms[0].calls == INTERRUPTED and comms[0].broken is None:
            # Before the `try` around the call: as if it were in the caller's own code.
            assert place.code is Communicator.allreduce.__code__
            assert place.offset < 6
            step(INTERRUPTED)
        else:
            mine.append(Alarm())
    step(*range(INTERRUPTED + 1, STEPS))
    thread.join(2 * TIMEOUT)
    assert not thread.is_alive(), "the other rank hangs"
    judge(mine, other, office, broken=comms[0].broken)
    for comm in comms:
        comm.close()
    join(our_threads() - before)


def our_threads() -> set[threading.Thread]:
    """The library's threads: that of each port, and each communicator's heartbeat."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("p4reduce")}


def join(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), f"{thread.name} hangs"


def judge(mine: list[Any], other: list[Any], office: Office, broken: Exception | None) -> None:
    """Every sum is right; and where one is missing, an error says why, on both ranks."""
    for step in range(STEPS):
        if isinstance(mine[step], p4reduce.P4ReduceError):
            assert isinstance(mine[step], p4reduce.InterruptedCallError), mine[step]
            assert broken is not None
        elif not isinstance(mine[step], Alarm):
            assert (np.asarray(mine[step]) == total(step)).all(), f"{step}: {mine[step]}"
        if isinstance(other[step], p4reduce.P4ReduceError):
            assert isinstance(other[step], p4reduce.WorkerLostError), repr(other[step])
            assert other[step].ranks == (0,)
            assert broken is not None
        else:
            assert (np.asarray(other[step]) == total(step)).all(), f"{step}: {other[step]}"
    if broken is not None:
        assert all(isinstance(later, p4reduce.InterruptedCallError) for later in mine[2:])
        assert office.left >= {0}


def all_places(world: SmallWorld, call: Call) -> list[Place]:
    _, comms = world.job()
    everything = (call, comms[1], 1, [], *range(STEPS))
    other = threading.Thread(target=steps, args=everything, daemon=True)
    other.start()
    step = functools.partial(steps, call, comms[0], 0, [])
    step(0)
    found = places(lambda: step(INTERRUPTED))
    step(*range(INTERRUPTED + 1, STEPS))
    other.join(TIMEOUT)
    for comm in comms:
        comm.close()
    callers = {steps.__code__, call.__code__, outcome.__code__}
    callers |= {each for each in steps.__code__.co_consts if isinstance(each, CodeType)}
    return [place for place in found if place.code not in callers]


def drawn(found: list[Place], rng: np.random.Generator, number: int = 12) -> list[Place]:
    """Some places, other ones each time; all of them if `EVERY` is set, which takes long."""
    if os.environ.get(EVERY):
        return found
    chosen = rng.choice(len(found), min(number, len(found)), replace=False)
    return [found[at] for at in chosen]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_an_exception_at_any_bytecode(
    world: SmallWorld, call: Call, rng: np.random.Generator
) -> None:
    found = all_places(world, call)
    assert len(found) > 500
    for place in drawn(found, rng):
        print(f"interrupted at {place}")
        run(world, call, place)


def test_an_exception_at_any_bytecode_of_close(world: SmallWorld, rng: np.random.Generator) -> None:
    def begun() -> tuple[Office, list[Communicator]]:
        office, comms = world.job()
        other = threading.Thread(target=one, args=(comms[1], 1, 0), daemon=True)
        other.start()
        one(comms[0], 0, 0)
        other.join(TIMEOUT)
        return office, comms

    before = our_threads()
    _, comms = begun()
    found = places(comms[0].close)
    comms[1].close()
    for place in drawn(found, rng):
        print(f"interrupted at {place}")
        office, comms = begun()
        interrupted(comms[0].close, place)
        comms[0].close()
        assert office.left == {0}
        assert isinstance(outcome(comms[0].barrier), p4reduce.ClosedError)
        comms[1].close()
        join(our_threads() - before)


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_an_exception_at_any_bytecode_of_init(system: System, rng: np.random.Generator) -> None:
    made: list[Communicator] = []
    found = places(lambda: made.append(system.init(0, 1, system.new_job())))
    made.pop().close()
    for place in drawn(found, rng):
        print(f"interrupted at {place}")
        job = system.new_job()
        if not interrupted(lambda: made.append(system.init(0, 1, job)), place):  # noqa: B023
            made.pop().close()
            continue
        del made[:]
        with system.init(0, 1, job) as comm:  # the place is free again
            assert comm.allreduce(np.int32(3)) == 3


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_an_exception_at_any_bytecode_of_reform(system: System, rng: np.random.Generator) -> None:
    def bereft(job: str) -> Communicator:
        first, second = at_once([lambda rank=rank: system.init(rank, 2, job) for rank in range(2)])
        second.close()
        assert isinstance(outcome(first.barrier), p4reduce.WorkerLostError)
        return first

    made: list[Communicator] = []
    before = bereft(system.new_job())
    found = places(lambda: made.append(before.reform()))
    made.pop().close()
    for place in drawn(found, rng, 8):
        print(f"interrupted at {place}")
        job = system.new_job()
        before = bereft(job)
        interrupted(lambda: made.append(before.reform()), place)  # noqa: B023
        again = made.pop() if made else outcome(before.reform)
        if isinstance(again, p4reduce.ClosedError):
            again = system.init(0, 1, job)  # it had been formed, and was left when nobody had it
        assert again.allreduce(np.int32(3)) == 3
        again.close()
        before.close()


# Two ranks of many jobs. Rank 0 has an alarm in each but the last two, which it survives.
PROGRAM = """
import random, signal, sys
import numpy as np, p4reduce
controller, rank, interface, seed, jobs = sys.argv[1:]
rank, chance = int(rank), random.Random(int(seed))
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
def share(rank, step): return np.full(700, (1 + step) * 1000**rank, np.int32)
# On a machine of any speed one comes within the first job, and none within the last two.
alarms = [1e-5, *(chance.uniform(0.0005, 0.03) for _ in range(int(jobs) - 3)), 0, 0]
said = {"exact": 0, "alarms": 0, "broken": 0}
for job in range(int(jobs)):
    comm = p4reduce.init(rank, 2, controller, f"alarm-{seed}-{job}", interface=interface)
    lost = False
    try:
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, alarms[job])
        for step in range(12):
            mine, expected = share(rank, step), share(0, step) + share(1, step)
            begun = comm.calls
            try:
                result = comm.allreduce(mine, timeout=120)
                assert not lost, "a sum after an error"
                assert (result == expected).all(), (job, step, result[0], expected[0])
                said["exact"] += 1
            except p4reduce.P4ReduceError as error:
                ours = p4reduce.InterruptedCallError if rank == 0 else p4reduce.WorkerLostError
                assert isinstance(error, ours), repr(error)
                assert rank == 0 or error.ranks == (0,), repr(error)
                said["broken"] += not lost
                lost = True
            except Alarm:
                said["alarms"] += 1
                mine[:] = -7
                if comm.calls == begun and comm.broken is None:
                    break  # before the call's first `try`, as in this program's own code
    except Alarm:
        said["alarms"] += 1  # in this program's own code: it leaves
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            comm.close()
            break
        except Alarm:
            pass
print(said)
"""


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_alarms_at_random_moments(system: System, rng: np.random.Generator) -> None:
    seed, jobs = int(rng.integers(1 << 20)), 15
    print(f"alarm seed {seed}")
    commands = [
        [sys.executable, "-c", PROGRAM, system.controller, str(rank), system.interface(rank + 1)]
        for rank in range(2)
    ]
    ranks = [
        subprocess.Popen(
            [*command, str(seed), str(jobs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [rank.communicate(timeout=3 * DEADLINE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (out, errors) in zip(ranks, said, strict=True):
        print(out, errors)
        assert rank.returncode == 0
    figures = [ast.literal_eval(out) for out, _ in said]
    assert figures[0]["alarms"] > 0
    assert figures[1]["exact"] > jobs
