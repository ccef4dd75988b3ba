# SPDX-License-Identifier: Apache-2.0
"""The reference worker as a rank like any other."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from worker_system import System, at_once, outcome

WORLD = 4
PLAIN = 2  # the rank that is the reference worker
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tiny_worker.py"


@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_a_rank_of_four_gives_the_same_bits(
    system: System, faults: int, rng: np.random.Generator
) -> None:
    """Beside three that ship: all ranks' results are equal, and those of a job without it."""
    inputs = [rng.normal(size=(WORLD, 3000)).astype(dtype) for dtype in (np.float32, np.float16)]
    whole = rng.integers(-(1 << 28), 1 << 28, (WORLD, 2000), np.int32)
    whole[:, 300:900] = 0  # blocks that stay at home

    def work(comm: p4reduce.Communicator) -> list[Any]:
        mine = [comm.allreduce(array[comm.rank]) for array in (*inputs, whole)]
        mean = comm.allreduce(inputs[0][comm.rank], op=p4reduce.MEAN)
        narrow = comm.allreduce(inputs[0][comm.rank], precision="int16", seed=7)
        everybody = comm.allgather(np.arange(comm.rank + 1))
        comm.barrier()
        return [*mine, mean, narrow, everybody]

    mixed = _run(system, work, plain=PLAIN)
    shipped = _run(system, work, plain=None)
    for others, ours in zip(mixed, shipped, strict=True):
        for one, other in zip(others, ours, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(mixed[PLAIN][2], whole.sum(axis=0))


def test_it_hears_who_called_what(system: System) -> None:
    """As its colleagues do, which learn of its call."""

    def work(comm: p4reduce.Communicator) -> list[Any]:
        shape = (10, 20) if comm.rank == PLAIN else (20, 10)
        handle = comm.allreduce_async(np.ones(shape), timeout=30)
        return [outcome(handle.wait), outcome(comm.barrier)]

    for errors in _run(system, work, plain=PLAIN):
        for error in errors:
            assert isinstance(error, p4reduce.MismatchError)
            assert error.ranks == (PLAIN,)
            assert "shape (10, 20)" in str(error)


def _run(system: System, work: Any, *, plain: int | None) -> list[list[Any]]:
    job = system.new_job()

    def rank(number: int) -> list[Any]:
        engine = "reference" if number == plain else "native"
        with system.init(number, WORLD, job, engine=engine, slots=8) as comm:
            results: list[Any] = work(comm)
            return results

    works = [functools.partial(rank, number) for number in range(WORLD)]
    results: list[list[Any]] = at_once(works)
    return results


def test_an_error_is_the_same_on_all_ranks(system: System) -> None:
    job = system.new_job()

    def rank(number: int) -> str:
        engine = "reference" if number == 0 else "native"
        with system.init(number, 2, job, engine=engine, slots=4) as comm:
            with pytest.raises(p4reduce.MismatchError) as error:
                comm.allreduce(np.ones(10 + number, np.float32))
            return type(error.value).__name__

    assert at_once([lambda: rank(0), lambda: rank(1)]) == ["MismatchError"] * 2


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_jobs_share_a_port_if_their_engine_is_the_same(system: System) -> None:
    jobs = [system.new_job() for _ in range(3)]

    def rank(number: int) -> bool:
        engine, other = ("reference", "native") if number == 0 else ("native", "reference")
        with contextlib.ExitStack() as stack:
            comms = [
                stack.enter_context(system.init(number, 2, job, engine=engine, slots=4))
                for job in jobs[:2]
            ]
            with pytest.raises(p4reduce.ConfigurationError, match=f"engine='{engine}' has this"):
                system.init(number, 2, jobs[2], engine=other)
            shares = [np.full(700, 10**k * (number + 1), np.int32) for k in range(2)]
            handles = [
                comm.allreduce_async(share) for comm, share in zip(comms, shares, strict=True)
            ]
            sums = [handle.wait() for handle in handles]
            return all((total == 3 * 10**k).all() for k, total in enumerate(sums))

    assert at_once([lambda: rank(0), lambda: rank(1)]) == [True, True]


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"engine='fast': one of 'native', 'reference' is needed"):
        p4reduce.init(0, 1, engine="fast")


@pytest.mark.long
def test_the_example_shows_each_packet() -> None:
    lab = Path(sys.executable).with_name("p4reduce-lab")
    command = [str(lab), "exec", "-n", "2", "--", sys.executable, str(EXAMPLE)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = run.stdout + run.stderr
    assert "sends CONTRIBUTE slot 0 round 0 block none next 0" in said
    assert "takes RESULT     slot 0 round 3 block 2 next none PAYLOAD heard 11" in said
    assert said.count("of 2: [1. 3. 3.]") == 2
