# SPDX-License-Identifier: Apache-2.0
"""A switch and a controller that can be killed and started again."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from relay import Relay
from worker_system import PORTS, TARGETS, System

PATIENT_LEASE = 10.0  # seconds; where no lease is to run out, long enough for a busy machine
# What controller and workers settle among themselves needs only one target.
EMBEDDED = pytest.mark.parametrize("fault_system", ["embedded"], indirect=True)


def short_time() -> float:
    """Seconds, for leases and timeouts that are to run out: the busier the machine, the more.

    A rank that the machine leaves standing for a lease is lost, as it should be.
    """
    with Path("/proc/loadavg").open() as file:
        minute, _, _, now, _ = file.read().split()
    ready = max(float(minute), float(now.partition("/")[0])) / (os.cpu_count() or 1)
    return round(1.5 * max(1.0, ready / 2), 1)  # errors say three digits of how long it was


def fault_system_with(lease: Callable[[], float], scope: Literal["session", "module"]) -> Any:
    """A fixture `fault_system`, which each test that uses it has once on each target."""

    @pytest.fixture(scope=scope, params=TARGETS, name="fault_system")
    def fault_system(request: pytest.FixtureRequest) -> Iterator[FaultSystem]:
        # pytest's own directories have paths too long for Unix sockets.
        with tempfile.TemporaryDirectory(prefix="p4r-") as name:
            running = FaultSystem(request.param, Path(name), lease())
            try:
                yield running
            finally:
                running.close()

    return fault_system


class FaultSystem(System):
    """Like `System`, but made to be broken. Interfaces outlive the switch, as cables do."""

    def __init__(self, target: str, directory: Path, lease: float) -> None:
        switch_directory = directory / "switch"
        switch_directory.mkdir()
        self._veths: VethPorts | None = None
        if target == "bmv2":
            self._veths = VethPorts(PORTS)
            launcher = Bmv2Switch(switch_directory, self._veths.switch_side)
            self._interface = self._veths.interface
        else:
            launcher = EmbeddedSwitch(switch_directory, PORTS)
            self._interface = launcher.interface
        super().__init__(launcher, directory, lease=lease)

    def interface(self, port: int) -> str:
        return self._interface.format(port=port)

    def kill_switch(self) -> None:
        assert self._switch.pid is not None
        os.kill(self._switch.pid, signal.SIGKILL)
        self._switch.stop()

    def start_switch(self) -> None:
        self._switch.start(self._processes)
        self._switch.wait_ready()

    def kill_controller(self) -> None:
        os.kill(self._controller.process.pid, signal.SIGKILL)
        self._controller.end(0.0)
        self._processes.children.remove(self._controller)

    @contextmanager
    def hanging_controller(self) -> Iterator[None]:
        pid = self._controller.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def relay(self) -> Relay:
        """Return another way to the controller."""
        return Relay(self._directory / f"relay-{next(self._numbers)}.sock", self.controller)

    def repair(self) -> None:
        """Start what is not running; for the next test."""
        if not self._switch.alive():
            self.start_switch()
        if self._controller not in self._processes.children:
            self.start_controller()

    def close(self) -> None:
        super().close()
        if self._veths is not None:
            self._veths.close()
