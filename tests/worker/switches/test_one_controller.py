# SPDX-License-Identifier: Apache-2.0
"""Two switches side by side that one controller owns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from worker_system import DEADLINE, at_once, wait_for

T = TypeVar("T")

WORLD = 2
NAMES = ("left", "right")
ONES = np.ones(60_000, np.float32)


class OneController:
    """Has two switches, whose names are `NAMES`."""

    def __init__(self, directory: Path) -> None:
        self._processes = Processes()
        self._jobs = iter(f"job-{number}" for number in range(1000))
        self.controller = f"unix:{directory}/controller.sock"
        self.control = ControlClient(self.controller)
        self.switches = []
        command = [sys.executable, "-m", "p4reduce_controller", "serve", "--lease", "10"]
        command += ["--listen", self.controller, "--state-dir", f"{directory}/state"]
        for name in NAMES:
            (directory / name).mkdir()
            switch = EmbeddedSwitch(directory / name, 4)
            self.switches.append(switch)
            switch.start(self._processes)
            switch.wait_ready()
            command += ["--switch", f"{name}={switch.grpc_address}", "--ports", f"{name}=1-4"]
        ready = directory / "ready"
        command += ["--ready-file", str(ready)]
        self._processes.start("controller", command, log=directory / "controller.log")

        def is_ready() -> bool:
            self._processes.check()
            return ready.exists()

        wait_for(is_ready, "the controller is ready")

    def init(self, rank: int, job: str, **options: Any) -> p4reduce.Communicator:
        places = [
            f"{name}={switch.interface.format(port=rank + 1)}"
            for name, switch in zip(NAMES, self.switches, strict=True)
        ]
        arguments: dict[str, Any] = {"interface": ",".join(places), "timeout": DEADLINE}
        arguments |= {"controller": self.controller, "job": job}
        return p4reduce.init(rank, WORLD, **(arguments | options))

    def run(self, work: Callable[[p4reduce.Communicator], T], **options: Any) -> list[T]:
        job = next(self._jobs)

        def rank(number: int) -> T:
            with self.init(number, job, **options) as comm:
                return work(comm)

        return at_once([lambda number=number: rank(number) for number in range(WORLD)])

    def jobs(self) -> list[str]:
        listed = self.control.call(self.control.stub.ListJobs, pb.ListJobsRequest())
        return sorted(job.name for job in listed.jobs)

    def close(self) -> None:
        self.control.close()
        self._processes.end()
        for switch in self.switches:
            switch.stop()


@pytest.fixture(scope="module")
def system() -> Iterator[OneController]:
    # pytest's own directories have paths too long for Unix sockets.
    with tempfile.TemporaryDirectory(prefix="p4r-") as name:
        running = OneController(Path(name))
        try:
            yield running
        finally:
            running.close()


def test_each_switch_has_a_job_of_its_own(system: OneController) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        assert (comm.allreduce(ONES) == WORLD).all()
        comm.barrier()  # both are in all jobs as long as either looks
        names = system.jobs()
        comm.barrier()
        return comm.job, names, [switch.statistics.blocks for switch in comm.switches]

    for job, names, blocks in system.run(work):
        assert names == [job, f"{job}/side-1"]
        assert blocks == [117, 118]


def test_a_switch_that_there_is_not_is_named(system: OneController) -> None:
    place = system.switches[0].interface.format(port=1)
    with pytest.raises(p4reduce.AdmissionError, match=r"middle.*left"):
        p4reduce.init(
            0,
            1,
            system.controller,
            "lonely",
            20.0,
            interface=[f"middle={place}", f"right={place}2"],
        )
