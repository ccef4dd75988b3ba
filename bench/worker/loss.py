# SPDX-License-Identifier: Apache-2.0
"""The memory of a large all-reduce, and what is left to do after its switch is lost near the end.

Memory is the largest resident size during the call, less the size before it. The switch is killed
when rank 0 has sent a part of its blocks, and started again at once. The time counts from when the
job runs on the new switch.

    python -m bench.worker.loss [--megabytes 64] [--at 0.9] [--workers 4] [--trials 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.several import system_of
from p4reduce_lab.system import rank_variables

from bench.machine import describe, machine
from bench.ranks import wait_for

BLOCK = 256  # numbers
WHOLE = 5  # undisturbed calls
POLL = 0.0005
TIMEOUT = 300.0


def resident(field: str) -> int:
    """This process's memory in bytes: "VmRSS", or "VmHWM" for its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {field}")


def tell(comm: p4reduce.Communicator, blocks: float, file: Path) -> None:
    """Make a file when a rank has sent that many blocks."""
    while comm.stats.blocks_sent < blocks:
        time.sleep(POLL)
    file.touch()


def rank(report: Path, megabytes: int, at: float, trials: int, directory: Path) -> None:
    """What each rank does: it leaves its figures, in seconds and bytes."""
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
                file = directory / f"reached{trial - WHOLE}"
                threading.Thread(target=tell, args=(comm, blocks, file), daemon=True).start()
            recoveries = comm.stats.recoveries
            comm.allreduce(array, out=array)
            end = time.time()
            assert (array == comm.size).all()
            if trial < WHOLE:
                whole.append(end - start)
            else:
                ends.append(end if comm.stats.recoveries > recoveries else 0.0)
    figures = {"memory": memory, "whole": whole, "ends": ends}
    report.write_text(json.dumps(figures))


def running_at(log: Path) -> list[float]:
    """When the controller's jobs began to run."""
    lines = [line for line in log.read_text().splitlines() if "job-running" in line]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--megabytes", type=int, default=64, help="of the array, in MiB")
    parser.add_argument("--at", type=float, default=0.9, help="part of the blocks, at the loss")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=5, help="losses")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        rank(options.report, options.megabytes, options.at, options.trials, options.directory)
        return
    print(describe(machine()))
    with (
        run_directory() as directory,
        system_of(choose("embedded", "local"), directory, directory, options.workers, 1) as system,
    ):
        script = ["-m", "bench.worker.loss", "--directory", str(directory)]
        script += ["--trials", str(options.trials), "--megabytes", str(options.megabytes)]
        script += ["--at", str(options.at)]
        system.start()
        system.wait_ready()
        files = [directory / f"rank{number}.json" for number in range(options.workers)]
        ranks = [
            system.processes.start(
                f"rank {number}",
                [sys.executable, *script, "--report", str(file)],
                environment={**rank_variables(number, options.workers), **system.variables()},
            )
            for number, file in enumerate(files)
        ]
        for trial in range(options.trials):
            while not (directory / f"reached{trial}").exists():
                system.processes.check()
                time.sleep(POLL)
            system.restart_switch(lambda: None)
            system.wait_ready()
        wait_for(system.processes, ranks, TIMEOUT)
        reports = [json.loads(file.read_text()) for file in files]
        began = running_at(directory / "controller.log")[1:]
    whole = statistics.median(reports[0]["whole"])
    print(f"memory beside the array: {max(one['memory'] for one in reports) / 2**20:.2f} MiB")
    print(f"the whole sum: {whole:.3f} s")
    ends = [max(one["ends"][trial] for one in reports) for trial in range(options.trials)]
    left = [end - at for end, at in zip(ends, began, strict=True) if end]
    print(
        f"after a loss at {options.at:.0%}: {statistics.median(left):.3f} s, "
        f"{statistics.median(left) / whole:.0%} of the whole sum ({len(left)} losses: "
        + ", ".join(f"{one:.3f}" for one in sorted(left))
        + ")"
    )


if __name__ == "__main__":
    main()
