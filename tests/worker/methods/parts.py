# SPDX-License-Identifier: Apache-2.0
"""Data that ranks have parts of, and what a call comes to on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from p4reduce.methods import in_process
from worker_system import System

T = TypeVar("T")


def cut(ranks: int, *arrays: Any, seed: int = 0) -> list[tuple[Any, ...]]:
    """Each rank's part of arrays, in order: parts of different sizes, none empty."""
    rng = np.random.default_rng([seed, ranks])
    places = np.sort(rng.choice(np.arange(1, len(arrays[0])), ranks - 1, replace=False))
    return list(zip(*(np.split(array, places) for array in arrays), strict=True))


def fit(system: System | None, ranks: int, make: Callable[[Any], Any], *arrays: Any) -> list[Any]:
    """Fit an estimator on parts of arrays; return each rank's. Eight ranks go over the switch."""
    parts = cut(ranks, *arrays)
    run: Any = system.run if system and ranks == 8 else in_process.run
    return list(run(ranks, lambda comm: make(comm).fit(*parts[comm.rank])))


def refusals(make: Callable[[Any], Any], parts: Sequence[tuple[Any, ...]]) -> set[str]:
    """Fit an estimator on parts that cannot be used; return the errors' texts."""

    def work(comm: in_process.InProcess) -> str:
        try:
            make(comm).fit(*parts[comm.rank])
        except ValueError as error:
            comm.allreduce(np.ones(1))  # all ranks are still in step
            return str(error)
        return "no error"

    return set(in_process.run(len(parts), work))
