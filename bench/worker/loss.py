# SPDX-License-Identifier: Apache-2.0
"""The memory of a large all-reduce, and what is left to do after its switch is lost near the end.

Memory is the largest resident size during the call, less the size before it. The switch is killed
when rank 0 has sent a part of its blocks, and started again at once. The time counts from when the
job runs on the new switch.

    python -m bench.worker.loss [--megabytes 64] [--at 0.9] [--workers 4] [--trials 5]
"""

from __future__ import annotations

import statistics
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce

from bench.program import Option, read_options, run, some, tell
from bench.ranks import TIMEOUT, reports_in, running, start_ranks, wait_for

BLOCK = 256  # numbers
WHOLE = 5  # undisturbed calls
POLL = 0.0005


def resident(field: str) -> int:
    """This process's memory in bytes: "VmRSS", or "VmHWM" for its peak."""
    _, _, rest = Path("/proc/self/status").read_text().partition(f"{field}:")
    return int(rest.split()[0]) << 10


def touch_at(comm: p4reduce.Communicator, blocks: float, file: Path) -> None:
    """Make a file when a rank has sent that many blocks."""
    while comm.stats.blocks_sent < blocks:
        time.sleep(POLL)
    file.touch()


def rank(megabytes: int, at: float, trials: int, directory: str) -> dict[str, Any]:
    """What each rank does: it returns its figures, in seconds and bytes."""
    with p4reduce.init(timeout=TIMEOUT, slots=128) as comm:
        array = np.ones(megabytes << 18, np.float32)
        comm.allreduce(array[: 1 << 20], out=array[: 1 << 20])
        comm.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        before = resident("VmRSS")
        comm.allreduce(array, out=array)
        memory = resident("VmHWM") - before
        whole: list[float] = []
        ends: list[float] = []
        for trial in range(WHOLE + trials):
            array[:] = 1.0
            comm.barrier()
            start = time.time()
            if trial >= WHOLE and comm.rank == 0:
                blocks = comm.stats.blocks_sent + at * array.size / BLOCK
                file = Path(directory, f"reached{trial - WHOLE}")
                threading.Thread(target=touch_at, args=(comm, blocks, file), daemon=True).start()
            recoveries = comm.stats.recoveries
            comm.allreduce(array, out=array)
            end = time.time()
            assert (array == comm.size).all()
            if trial < WHOLE:
                whole.append(end - start)
            else:
                ends.append(end if comm.stats.recoveries > recoveries else 0.0)
    return {"memory": memory, "whole": whole, "ends": ends}


def running_at(log: Path) -> list[float]:
    """When the controller's jobs began to run."""
    lines = [line for line in log.read_text().splitlines() if "job-running" in line]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]


def main() -> None:
    options = read_options(
        __doc__,
        megabytes=Option(64, "of the array, in MiB"),
        at=Option(0.9, "part of the blocks, at the loss"),
        workers=4,
        trials=Option(5, "losses"),
    )
    with running(options.workers) as (system, directory):
        given = some(options, "megabytes", "at", "trials") | {"directory": str(directory)}
        ranks = start_ranks(system, directory, options.workers, rank, given)
        for trial in range(options.trials):
            while not (directory / f"reached{trial}").exists():
                system.processes.check()
                time.sleep(POLL)
            system.restart_switch(lambda: None)
            system.wait_ready()
        wait_for(system.processes, ranks)
        reports = reports_in(directory, options.workers)
        began = running_at(directory / "controller.log")[1:]
    whole = statistics.median(reports[0]["whole"])
    ends = [max(one["ends"][trial] for one in reports) for trial in range(options.trials)]
    left = sorted(end - at for end, at in zip(ends, began, strict=True) if end)
    row = {
        "memory_beside_the_array_mib": max(one["memory"] for one in reports) / 2**20,
        "whole_sum_seconds": whole,
        "rest_after_loss_seconds": statistics.median(left),
        "of_the_whole_sum": statistics.median(left) / whole,
        "losses": len(left),
    }
    tell(options, [row], "each loss, seconds: " + ", ".join(f"{one:.3f}" for one in left))


if __name__ == "__main__":
    run(main)
