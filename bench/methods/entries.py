# SPDX-License-Identifier: Apache-2.0
"""The methods of the scorecard, each with the settings that it is run with.

What a setting needs to know of the whole task (L, ρ) is taken from the whole task: each method gets
the settings that its paper recommends, or the best of a rough search (`Task.rho`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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

LOCAL_STEPS = 5  # Q of FedBCD
EVERY = 16  # H of local SGD
PAIRS = 16  # m of DS-LSR1


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        method: what a rank does.
        settings: of the method, by the task.
        most: steps after which it is given up.
        blocks: whether ranks have blocks of one model, with zeros elsewhere, that add up to it.
    """

    method: Callable[..., Result]
    settings: Callable[[Task], dict[str, Any]]
    most: int = 100_000
    blocks: bool = False

    def suits(self, task: Task) -> bool:
        """Whether it can solve a task: there is a feature for each rank that needs one."""
        return not self.blocks or task.whole.size >= task.ranks

    def work(self, comm: Comm, task: Task, steps: int, watch: Watch) -> Result:
        """Run it as one rank, for so many steps at most."""
        if self.blocks:
            return _fedbcd(self.method, comm, task, steps, watch)
        given = self.settings(task)
        return self.method(comm, task.problems[comm.rank], steps=steps, watch=watch, **given)

    def models(self, found: list[Array]) -> list[Array]:
        """Return each rank's model of what each rank has found."""
        return [np.sum(found, axis=0)] * len(found) if self.blocks else found


def _rate(task: Task) -> dict[str, Any]:
    return {"rate": 1 / task.curvature[0]}


def _momentum(task: Task) -> dict[str, Any]:
    rate, momentum = best_momentum(*task.curvature)
    return {"rate": rate, "momentum": momentum}


def _bearable(task: Task) -> dict[str, Any]:
    """Whole gradients, at the rate that the rank with the largest smoothness can bear."""
    return {"rate": 1 / max(problem.smoothness() for problem in task.problems), "every": EVERY}


def _fedbcd(
    method: Callable[..., Result], comm: Comm, task: Task, steps: int, watch: Watch
) -> Result:
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


ENTRIES: dict[str, Entry] = {
    "gd": Entry(gd, _rate),
    "gd-momentum": Entry(gd, _momentum),
    "cat": Entry(cat, lambda task: {**_rate(task), "compression": "cat:own"}),
    "lag-wk": Entry(lag.lag_wk, _rate),
    "lag-ps": Entry(lag.lag_ps, lambda task: {**_rate(task), "xi": task.lag_ps_xi}),
    "admm": Entry(admm, lambda task: {"rho": task.rho["admm"]}, 5_000),
    "gadmm": Entry(gadmm, lambda task: {"rho": task.rho["gadmm"], "by": Groups}, 5_000),
    "dgadmm": Entry(dgadmm, lambda task: {"rho": task.rho["dgadmm"], "period": task.period}, 5_000),
    "fedbcd-p": Entry(fedbcd_p, _rate, 2_000, blocks=True),
    "fedbcd-s": Entry(fedbcd_s, _rate, 1_400, blocks=True),
    "dslsr1": Entry(dslsr1, lambda _: {"memory": PAIRS}, 2_000),
    "local-sgd": Entry(local_sgd, _bearable),
}
