# SPDX-License-Identifier: Apache-2.0
"""Run a switch, its controller and workers for long, and tell whether anything grows.

    python -m bench.worker.soak --minutes 30 --loss 0.01

The ranks reduce arrays of random sizes and compare each sum with numpy's. Every few seconds they
leave their job and begin another one. Memory, open files and threads of each process are sampled;
the first third of the samples is left out, as caches fill and the allocator takes its arenas then.
What is left must not rise: Theil and Sen's slope over the samples, times their span, has to stay
below 3 MiB of memory, 2 files and 2 threads. The switch's counters have to add up, and in the end
all of its slots are free. Exit code 1 if not.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.control import control_pb2 as pb
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT
from p4reduce_lab.processes.children import ChildProcess
from p4reduce_lab.system import System

from bench.program import SWITCH, Option, read_options, run
from bench.ranks import running, start_ranks, wait_for

SAMPLES = 240  # or one a second
WARM_UP = 1 / 3
FIGURES = (("memory", "KiB", 3072.0), ("files", "", 2.0), ("threads", "", 2.0))
"""Each with its unit, and how much it may rise over the whole run."""
NEVER = ("unset", "malformed", "bad-version", "bad-ipv4-checksum", "unknown-kind", "unknown-format")

Samples = dict[str, npt.NDArray[np.float64]]
"""Of each process; shape (samples, 4): seconds, and the figures."""


def look(pid: int, seconds: float) -> list[float]:
    """Read what the kernel says of a process: a sample."""
    root = Path("/proc", str(pid))
    status = dict(
        line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line
    )
    files = sum(1 for _ in (root / "fd").iterdir())
    return [seconds, int(status["VmRSS"].split()[0]), files, int(status["Threads"])]


def work(seconds: float, job_seconds: float) -> int:
    """Be a rank: reduce in one job after the other; return how many. Wrong sums end it."""
    end = time.monotonic() + seconds
    life, libc = 0, ctypes.CDLL(None)
    going_on = True
    while going_on:
        with p4reduce.init(job=f"soak-{life}", timeout=120.0) as comm:
            going_on = one_job(comm, life, time.monotonic() + job_seconds, end)
        life += 1
        # What glibc keeps of freed memory, an arena a thread, is for the next job: each has
        # threads of its own, so it takes a hundred jobs until all arenas are as large as ever.
        gc.collect()
        libc.malloc_trim(0)
    return life


def one_job(comm: p4reduce.Communicator, life: int, over: float, end: float) -> bool:
    """Return whether there is time for another one, on which all ranks agree."""
    rng = np.random.default_rng(life)  # the same on all ranks: each knows all inputs
    rank, world = comm.rank, comm.size
    while True:
        size = int(rng.choice([1, 300, 5_000, 60_000]))
        arrays = rng.integers(-(1 << 20), 1 << 20, (world, size), np.int32)
        flags = np.array([time.monotonic() < over, time.monotonic() < end], np.int32)
        handle = comm.allreduce_async(arrays[rank])
        votes = comm.allreduce(flags)
        assert np.array_equal(handle.wait(), arrays.sum(axis=0)), f"a wrong sum in job {life}"
        if not votes.all() or votes[0] < world:
            return bool(votes[1] == world)


def rise(times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> float:
    """How much a figure rises over the samples' span, by Theil and Sen's slope."""
    first, second = np.triu_indices(len(times), 1)
    slopes = (values[second] - values[first]) / (times[second] - times[first])
    return float(np.median(slopes) * (times[-1] - times[0]))


def judge(samples: Samples) -> list[str]:
    """Print an account of each process, and return what is not steady."""
    wrong = []
    print(f"\n{'process':12} {'figure':8} {'first':>10} {'last':>10} {'rise':>10}")
    for process, rows in samples.items():
        its = rows[int(len(rows) * WARM_UP) :]
        if len(its) < 3:
            wrong.append(f"{process} has {len(its)} samples that count; at least 3 are needed")
            continue
        for column, (what, unit, limit) in enumerate(FIGURES, start=1):
            values = its[:, column]
            rises = rise(its[:, 0], values)
            print(
                f"{process:12} {what:8} {values[0]:10,.0f} {values[-1]:10,.0f} {rises:+10,.1f} "
                f"{unit}"
            )
            if rises > limit:
                wrong.append(f"{what} of {process} rises by {rises:,.0f} {unit}".rstrip())
    return wrong


def check_switch(system: System) -> list[str]:
    """Return what is wrong about counters and slots after all ranks have left."""
    stub, call = system.control.stub, system.control.call
    counts = {c.name: c.frames for c in call(stub.GetCounters, pb.GetCountersRequest()).counts}
    switch = call(stub.GetSwitch, pb.GetSwitchRequest())
    print("\n" + ", ".join(f"{name} {count:,}" for name, count in counts.items() if count))
    wrong = [f"{counts[name]} frames are {name}" for name in NEVER if counts[name]]
    opened = counts["round-opened"]
    completed = counts["round-completed"] + counts["round-completed-halves"]
    if opened != completed:
        wrong.append(f"{opened:,} rounds were opened and {completed:,} completed")
    if switch.slots_free != switch.slots:
        wrong.append(f"{switch.slots - switch.slots_free} slots are not free again")
    return wrong


def watch(system: System, ranks: Sequence[ChildProcess], seconds: float) -> Samples:
    """Sample all processes until the ranks have ended."""
    names = ["switch", "controller", *(f"rank {number}" for number in range(len(ranks)))]
    children = dict(zip(names, system.processes.children, strict=True))
    samples: dict[str, list[list[float]]] = {name: [] for name in names}
    began, reported = time.monotonic(), 0.0
    while (now := time.monotonic() - began) < seconds:
        system.processes.check(may_finish=ranks)
        if all(child.returncode is not None for child in ranks):
            break
        for name, child in children.items():
            samples[name].append(look(child.process.pid, now))
        if now - reported >= 60.0:
            reported = now
            memory = ", ".join(
                f"{name} {some[-1][1] / 1024:.0f} MiB" for name, some in samples.items()
            )
            print(f"{now / 60:4.0f} min  {memory}", flush=True)
        time.sleep(max(seconds / SAMPLES, 1.0))
    wait_for(system.processes, ranks, 240.0)
    return {name: np.array(some) for name, some in samples.items()}


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        minutes=30.0,
        workers=3,
        loss=Option(0.0, "share of frames, each way"),
        switch=SWITCH,
        network=Option("local", "the ports", choices=("local", "udp")),
        job_seconds=Option(5.0, "how long a job lives"),
    )
    seconds = 60.0 * options.minutes
    # Else how much is kept of freed memory depends on which threads met: on a busy machine that
    # rises for hours, with as many objects as ever.
    environment: dict[str, Any] = {"MALLOC_ARENA_MAX": "1"}
    if options.loss:
        environment[FAULTS_ENVIRONMENT] = f"drop={options.loss}"
    given = {"seconds": seconds, "job_seconds": options.job_seconds}
    with running(8, switch=options.switch, network=options.network) as (system, directory):
        ranks = start_ranks(system, directory, options.workers, work, given, environment)
        samples = watch(system, ranks, seconds)
        time.sleep(1.0)  # the controller takes the last job off the switch
        wrong = check_switch(system)
    wrong += judge(samples)
    if wrong:
        sys.exit("not steady: " + "; ".join(wrong))
    print("steady")


if __name__ == "__main__":
    run(main)
