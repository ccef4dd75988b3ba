# SPDX-License-Identifier: Apache-2.0
"""A switch and a controller as processes of their own, and ranks as threads of this one."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.launch import SwitchLauncher

T = TypeVar("T")

DEADLINE = 120.0  # seconds; how long anything may take before a test fails
LEASE = 10.0  # so long that a busy machine costs no rank its place
PORTS = 8
NO_OPERATION = "no-operation"  # a value of `op` that is wrong, whatever is added

NO_BMV2 = bmv2.unavailable()


# What a rank does depends on the program, which packet tests run on both targets.
TARGETS = [
    "embedded",
    pytest.param(
        "bmv2",
        marks=[
            pytest.mark.long,
            pytest.mark.bmv2,
            pytest.mark.root,
            pytest.mark.skipif(NO_BMV2 is not None, reason=str(NO_BMV2)),
        ],
    ),
]


def silence(error: p4reduce.P4ReduceError) -> float | None:
    """For how many seconds the controller had not heard a rank, or the rank not the switch.

    As the error says: the controller measured it. That others are told of a loss within the lease
    is tested where time does not pass by itself, in tests/controller/jobs; here it is that they
    are told, and not before.
    """
    said = re.search(
        r"(?:no heartbeat|nothing from the switch|nobody .* heard) for ([\d.]+) s", str(error)
    )
    return float(said[1]) if said else None


def wait_for(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still not so after {DEADLINE} s: {what}"
        time.sleep(0.02)


def in_time(call: Callable[[float], T], timeout: float) -> T:
    """What a call that takes a timeout in seconds returns, if the controller answers within it.

    Where it does not, since the machine is busy, the timeout was too short for what the test is
    about, and the call is made once more with four times as much.
    """
    while timeout < DEADLINE:
        with contextlib.suppress(p4reduce.ControllerUnreachableError):
            return call(timeout)
        timeout *= 4
    return call(DEADLINE)


class System:
    """A switch with ports from 1 on and its controller.

    Args:
        switch: not started yet; has its own directory.
        directory: for the controller's socket, state and log.
        ports: how many the switch has.
        lease: in seconds.
    """

    def __init__(
        self, switch: SwitchLauncher, directory: Path, ports: int = PORTS, lease: float = LEASE
    ) -> None:
        self._switch = switch
        self._directory = directory
        self._ports = ports
        self.lease = lease
        self._numbers = itertools.count()
        self._processes = Processes()
        self.controller = f"unix:{directory}/controller.sock"
        self.control = ControlClient(self.controller)
        try:
            switch.start(self._processes)
            switch.wait_ready()
            self.start_controller()
        except BaseException:
            self.close()
            raise

    def start_controller(self) -> None:
        directory = self._directory
        ready = directory / "controller.ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "p4reduce_controller", "serve"]
        command += ["--switch", self._switch.grpc_address, "--listen", self.controller]
        command += ["--ports", f"1-{self._ports}", "--lease", f"{self.lease:g}"]
        command += ["--state-dir", f"{directory}/state", "--ready-file", str(ready)]
        log = directory / "controller.log"
        self._controller = self._processes.start("controller", command, log=log)

        def is_ready() -> bool:
            self._processes.check()
            return ready.exists()

        wait_for(is_ready, "the controller is ready")

    def restart_switch(self) -> None:
        """End the switch, and start it again."""
        self._switch.stop()
        self._switch.start(self._processes)
        self._switch.wait_ready()

    def close(self) -> None:
        self.control.close()
        self._processes.end()
        self._switch.stop()

    @property
    def logs(self) -> list[Path]:
        """What switch and controller have written."""
        return sorted(self._directory.rglob("*.log"))

    def slots_free(self) -> int:
        status = self.control.call(self.control.stub.GetSwitch, pb.GetSwitchRequest())
        return int(status.slots_free)

    def job(self, name: str) -> pb.Job:
        jobs = self.control.call(self.control.stub.ListJobs, pb.ListJobsRequest()).jobs
        return next(job for job in jobs if job.name == name)

    def count(self, outcome: str) -> int:
        """Return how many frames had an outcome."""
        counters = self.control.call(self.control.stub.GetCounters, pb.GetCountersRequest())
        return next(int(count.frames) for count in counters.counts if count.name == outcome)

    def new_job(self) -> str:
        return f"test-{next(self._numbers)}"

    def interface(self, port: int | str) -> str:
        return self._switch.interface.format(port=port)

    def init(
        self, rank: int, world_size: int, job: str, *, first_port: int = 1, **options: Any
    ) -> p4reduce.Communicator:
        """Join as a rank; rank r is at port `first_port` + r."""
        arguments: dict[str, Any] = {
            "controller": self.controller,
            "timeout": DEADLINE,
            "interface": self.interface(first_port + rank),
        }
        return p4reduce.init(rank, world_size, job=job, **(arguments | options))

    def run(
        self,
        world_size: int,
        work: Callable[[p4reduce.Communicator], T],
        **options: Any,
    ) -> list[T]:
        """Run `work` as each rank of a new job; return what each returned."""
        job = self.new_job()

        def rank(number: int) -> T:
            with self.init(number, world_size, job, **options) as comm:
                return work(comm)

        return at_once([lambda number=number: rank(number) for number in range(world_size)])


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run functions in threads; return what they return, or raise what the first one raised."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, work: Callable[[], T]) -> None:
        try:
            results[number] = work()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(number, work), daemon=True)
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]


def outcome(work: Callable[[], Any]) -> Any:
    """What a function returns, or the error that it raises."""
    try:
        return work()
    except p4reduce.P4ReduceError as error:
        return error


@contextlib.contextmanager
def running_system(
    switch: Callable[[Path], SwitchLauncher], *, ports: int = PORTS, lease: float = LEASE
) -> Iterator[System]:
    """A system in a directory of its own: pytest's have paths too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="p4r-") as name:
        directory = Path(name)
        (directory / "switch").mkdir()
        system = System(switch(directory / "switch"), directory, ports, lease)
        try:
            yield system
        finally:
            system.close()
