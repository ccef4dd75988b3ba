# SPDX-License-Identifier: Apache-2.0
"""Several switches, each with a controller, as one system for one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

from p4reduce.control import control_pb2 as pb

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.processes.children import ChildProcess
from p4reduce_lab.system import READY_TIMEOUT, System


class SideBySideSystem(System):
    """A system as any, and further ones whose switches have the same workers at their ports.

    Args:
        choice, directory, logs, ports: see `System`.
        switches: their number in all. The first one is called a, like its logs.
    """

    def __init__(
        self, choice: LabChoice, directory: Path, logs: Path, ports: int, switches: int
    ) -> None:
        super().__init__(choice, directory, logs, ports, networks=switches)
        self._beside: list[System] = []
        for number in range(1, switches):
            own = directory / ascii_lowercase[number]
            own.mkdir()
            self._beside.append(
                System(choice, own, logs, ports, processes=self.processes, number=number)
            )

    topology = "side-by-side"
    switch_name, controller_name = "switch a", "the controller of switch a"

    @property
    def parts(self) -> Sequence[System]:
        """Return the systems, as `System` does."""
        return [self, *self._beside]

    def counters(self) -> list[dict[str, int]]:
        """Return the counters, as `System` does."""
        return super().counters() + [one for each in self._beside for one in each.counters()]

    def start(self) -> None:
        """Start all, as `System` does."""
        super().start()
        for system in self._beside:
            system.network = self.network
            system.start()

    def wait_ready(
        self, timeout: float = READY_TIMEOUT, *, may_finish: Sequence[ChildProcess] = ()
    ) -> pb.Switch:
        """Wait until all serve, as `System` does; return the report on the first switch."""
        for system in self._beside:
            system.wait_ready(timeout, may_finish=may_finish)
        return super().wait_ready(timeout, may_finish=may_finish)

    def variables(self) -> dict[str, str]:
        """The environment by which :func:`p4reduce.init` finds all of them."""
        each = [super().variables(), *(system.variables() for system in self._beside)]
        return {name: ",".join(one[name] for one in each) for name in each[0]}

    def __exit__(self, *error: object) -> None:
        self.processes.end()
        for system in self._beside:
            system.__exit__(*error)
        super().__exit__(*error)
