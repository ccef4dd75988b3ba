# SPDX-License-Identifier: Apache-2.0
"""The methods of the scorecard, each with the settings that it is run with.

What a setting needs to know of the whole task (L, ρ) is taken from the whole task: each method gets
the settings that its paper recommends, or the best of a rough search (`Task.rho`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p4reduce.methods._communicator import Array, Comm, Watch
from p4reduce.methods.gd import best_momentum, gd

from bench.methods.tasks import Task

Work = Callable[[Comm, Task, int, Watch], Array]
"""Runs a method as one rank, for so many steps at most; returns this rank's model."""


def _any(_task: Task) -> bool:
    return True


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        work: what a rank does.
        most: steps after which it is given up.
        suits: whether it can solve a task.
    """

    work: Work
    most: int = 100_000
    suits: Callable[[Task], bool] = _any


def _gd(comm: Comm, task: Task, steps: int, watch: Watch) -> Array:
    rate = 1 / task.curvature[0]
    return gd(comm, task.problems[comm.rank], rate=rate, steps=steps, watch=watch)


def _gd_momentum(comm: Comm, task: Task, steps: int, watch: Watch) -> Array:
    rate, momentum = best_momentum(*task.curvature)
    problem = task.problems[comm.rank]
    return gd(comm, problem, rate=rate, steps=steps, momentum=momentum, watch=watch)


ENTRIES: dict[str, Entry] = {
    "gd": Entry(_gd),
    "gd-momentum": Entry(_gd_momentum),
}
