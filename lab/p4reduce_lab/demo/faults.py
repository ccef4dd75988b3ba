# SPDX-License-Identifier: Apache-2.0
"""Deliberate faults: a process is killed while the workers train."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p4reduce_lab.demo.config import FAULT_FILE, KILL_WORKER, RESTART_SWITCH, TrainingConfig
from p4reduce_lab.processes.children import ChildProcess
from p4reduce_lab.system import System

VICTIM = 1  # a rank: not 0, whose curve is shown, nor the last of more, so that there is a gap


@dataclass(frozen=True)
class Incident:
    """A fault that has happened. Times are of the monotonic clock, which all processes share.

    Attributes:
        what: "the switch", "the root switch", "the controller", "the worker of rank 1", …
        step: How many steps rank 0 had done, as the launcher knew it.
        killed: When the process was killed.
        back: When it served again; None for what does not come back.
        victim: The rank of a worker that was killed.
    """

    what: str
    step: int
    killed: float
    back: float | None
    victim: int | None = None

    def text(self) -> str:
        """The incident for people."""
        again = "" if self.back is None else f", up again {self.back - self.killed:.1f} s later"
        return f"{self.what} was killed after {self.step} steps{again}"


class Faults:
    """Makes the configured fault, once.

    Args:
        config: Of the run.
        system: Switch and controller.
        workers: By rank.
        directory: That of the run, where the workers see that the fault has happened.
    """

    def __init__(
        self,
        config: TrainingConfig,
        system: System,
        workers: Sequence[ChildProcess],
        directory: Path,
    ) -> None:
        self._config = config
        self._system = system
        self._workers = workers
        self._happened = directory / FAULT_FILE
        self.incident: Incident | None = None

    def due(self, step: int) -> bool:
        """Whether it is time for the fault, after this many steps of rank 0 in the disturbed
        training."""
        return self.incident is None and self._config.faulty and step >= self._config.fault_step

    def make(self, step: int) -> Incident:
        """Kill the process, and return when a restarted one serves."""
        killed = time.monotonic()
        if self._config.fault == KILL_WORKER:
            victim = min(VICTIM, self._config.workers - 1)
            self._system.processes.kill(self._workers[victim])
            self._happened.touch()
            self.incident = Incident(f"the worker of rank {victim}", step, killed, None, victim)
            return self.incident
        if self._config.fault == RESTART_SWITCH:
            what = self._system.switch_name
            self._system.restart_switch(self._happened.touch)
        else:
            what = "the controller"
            self._system.restart_controller(self._happened.touch)
            self._system.wait_ready(may_finish=self._workers)
        self.incident = Incident(what, step, killed, time.monotonic())
        return self.incident
