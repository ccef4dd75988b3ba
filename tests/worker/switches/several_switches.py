# SPDX-License-Identifier: Apache-2.0
"""Several switches, each with its controller, and ranks that are on all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import p4reduce
from fault_system import FaultSystem
from worker_system import DEADLINE, at_once

T = TypeVar("T")


class SeveralSwitches:
    """Each a system of its own, that can be broken alone.

    Args:
        target: what the switches are.
        directory: with a short path.
        number: of switches.
        lease: in seconds.
    """

    def __init__(self, target: str, directory: Path, number: int, lease: float) -> None:
        self.systems: list[FaultSystem] = []
        self._jobs = itertools.count()
        self._what = target, directory, lease
        self.grow(number)

    def grow(self, number: int) -> None:
        """Have at least that many."""
        target, directory, lease = self._what
        for switch in range(len(self.systems), number):
            (directory / str(switch)).mkdir()
            self.systems.append(FaultSystem(target, directory / str(switch), lease))

    def new_job(self) -> str:
        return f"several-{next(self._jobs)}"

    def init(
        self,
        rank: int,
        world_size: int,
        job: str,
        switches: list[int] | None = None,
        **options: Any,
    ) -> p4reduce.Communicator:
        """Join as a rank, at port rank + 1 of each switch; `switches`: of those alone."""
        some = self.systems if switches is None else [self.systems[n] for n in switches]
        arguments: dict[str, Any] = {
            "controller": [system.controller for system in some],
            "interface": [system.interface(rank + 1) for system in some],
            "timeout": DEADLINE,
        }
        return p4reduce.init(rank, world_size, job=job, **(arguments | options))

    def run(
        self, world_size: int, work: Callable[[p4reduce.Communicator], T], **options: Any
    ) -> list[T]:
        """Run `work` as each rank of a new job; return what each returned."""
        job = self.new_job()

        def rank(number: int) -> T:
            with self.init(number, world_size, job, **options) as comm:
                return work(comm)

        return at_once([lambda number=number: rank(number) for number in range(world_size)])

    def repair(self) -> None:
        for system in self.systems:
            system.repair()

    def close(self) -> None:
        for system in self.systems:
            system.close()
