# SPDX-License-Identifier: Apache-2.0
"""The methods of the scorecard, each with the settings that it is run with.

What a setting needs to know of the whole task (L, ρ) is taken from the whole task: each method gets
the settings that its paper recommends, or the best of a rough search (`Task.rho`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from p4reduce.methods import lag
from p4reduce.methods._communicator import Array, Comm, Watch
from p4reduce.methods.admm import admm
from p4reduce.methods.cat import cat
from p4reduce.methods.dslsr1 import dslsr1
from p4reduce.methods.fedbcd import FedBCDSettings, Party, fedbcd_p, fedbcd_s
from p4reduce.methods.gadmm import dgadmm, gadmm
from p4reduce.methods.gd import best_momentum, gd
from p4reduce.methods.local_sgd import local_sgd
from p4reduce.methods.neighbours import Groups
from p4reduce.methods.result import Result

from bench.methods.tasks import Task

Work = Callable[[Comm, Task, int, Watch], Result]
"""Runs a method as one rank, for so many steps at most."""

LOCAL_STEPS = 5  # Q of FedBCD
EVERY = 16  # H of local SGD
PAIRS = 16  # m of DS-LSR1


def _any(_task: Task) -> bool:
    return True


def _features_for_all(task: Task) -> bool:
    return task.whole.size >= task.ranks


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        work: what a rank does.
        most: steps after which it is given up.
        suits: whether it can solve a task.
        blocks: whether ranks have blocks of one model, with zeros elsewhere, that add up to it.
    """

    work: Work
    most: int = 100_000
    suits: Callable[[Task], bool] = _any
    blocks: bool = False

    def models(self, found: list[Array]) -> list[Array]:
        """Return each rank's model of what each rank has found."""
        return [np.sum(found, axis=0)] * len(found) if self.blocks else found


def _gd(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rate = 1 / task.curvature[0]
    return gd(comm, task.problems[comm.rank], rate=rate, steps=steps, watch=watch)


def _gd_momentum(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rate, momentum = best_momentum(*task.curvature)
    problem = task.problems[comm.rank]
    return gd(comm, problem, rate=rate, steps=steps, momentum=momentum, watch=watch)


def _lag_wk(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rate = 1 / task.curvature[0]
    return lag.lag_wk(comm, task.problems[comm.rank], rate=rate, steps=steps, watch=watch)


def _lag_ps(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rate, xi = 1 / task.curvature[0], task.lag_ps_xi
    return lag.lag_ps(comm, task.problems[comm.rank], rate=rate, steps=steps, xi=xi, watch=watch)


def _admm(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rho = task.rho["admm"]
    return admm(comm, task.problems[comm.rank], rho=rho, steps=steps, watch=watch)


def _gadmm(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rho = task.rho["gadmm"]
    return gadmm(comm, task.problems[comm.rank], rho=rho, steps=steps, by=Groups, watch=watch)


def _dgadmm(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rho, period = task.rho["dgadmm"], task.period
    problem = task.problems[comm.rank]
    return dgadmm(comm, problem, rho=rho, steps=steps, period=period, watch=watch)


def _fedbcd(method: Callable[..., Result]) -> Work:
    def work(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
        columns = np.array_split(np.arange(task.features.shape[1]), comm.size)[comm.rank]
        labels = task.targets if comm.rank == 0 else None
        party = Party(task.features[:, columns], labels, squares=not task.logistic)
        scale = task.weight * len(task.targets)  # FedBCD's loss is a mean
        settings = FedBCDSettings(
            rate=scale * task.block_rate / task.curvature[0],
            rounds=steps,
            local_steps=LOCAL_STEPS,
            penalty=task.penalty / scale,
        )

        def whole(block: Array) -> Array:
            model = np.zeros(task.features.shape[1])
            model[columns] = block
            return model

        end = method(comm, party, settings, watch=lambda step, block: watch(step, whole(block)))
        return replace(end, model=whole(end.model))

    return work


def _cat(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    rate, problem = 1 / task.curvature[0], task.problems[comm.rank]
    return cat(comm, problem, rate=rate, steps=steps, compression="cat:own", watch=watch)


def _dslsr1(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    return dslsr1(comm, task.problems[comm.rank], steps=steps, memory=PAIRS, watch=watch)


def _local_sgd(comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
    """Whole gradients, at the rate that the rank with the largest smoothness can bear."""
    rate = 1 / max(problem.smoothness() for problem in task.problems)
    problem = task.problems[comm.rank]
    return local_sgd(comm, problem, rate=rate, steps=steps, every=EVERY, watch=watch)


ENTRIES: dict[str, Entry] = {
    "gd": Entry(_gd),
    "gd-momentum": Entry(_gd_momentum),
    "cat": Entry(_cat),
    "lag-wk": Entry(_lag_wk),
    "lag-ps": Entry(_lag_ps),
    "admm": Entry(_admm, 5_000),
    "gadmm": Entry(_gadmm, 5_000),
    "dgadmm": Entry(_dgadmm, 5_000),
    "fedbcd-p": Entry(_fedbcd(fedbcd_p), 2_000, _features_for_all, blocks=True),
    "fedbcd-s": Entry(_fedbcd(fedbcd_s), 1_400, _features_for_all, blocks=True),
    "dslsr1": Entry(_dslsr1, 2_000),
    "local-sgd": Entry(_local_sgd),
}
