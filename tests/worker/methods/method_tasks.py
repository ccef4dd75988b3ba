# SPDX-License-Identifier: Apache-2.0
"""Tasks for training methods, their optimum, and runs to a gap over a switch or in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from p4reduce.methods import in_process
from p4reduce.methods.problems import LeastSquares, gadmm_synthetic
from p4reduce.methods.result import Result


def synthetic(ranks: int, seed: int = 0) -> list[LeastSquares]:
    """The linear task of GADMM's authors."""
    return [LeastSquares(*part) for part in gadmm_synthetic(ranks, seed)]


def hessian(parts: Sequence[Any]) -> Any:
    """Of the sum of least-squares parts."""
    return sum(part.features.T @ part.features for part in parts)


def optimum(parts: Sequence[Any]) -> float:
    """The least value of a sum of least-squares parts, by numpy."""
    whole = np.vstack([part.features for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    _, rest, _, _ = np.linalg.lstsq(whole, targets, rcond=None)
    return 0.5 * float(rest[0])


def gd_steps(parts: Sequence[Any], gap: float) -> int:
    """How many steps of 1/L gradient descent takes to a gap, from the eigenvalues."""
    eigenvalues, directions = np.linalg.eigh(hessian(parts))
    moments = sum(part.features.T @ part.targets for part in parts)
    starts = eigenvalues * (directions.T @ moments / eigenvalues) ** 2 / 2
    shrink = (1 - eigenvalues / eigenvalues[-1]) ** 2
    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if starts @ shrink**middle <= gap else (middle, high)
    return high


@dataclass
class Run:
    """What came of a run."""

    steps: int = 0
    uploads: int = 0
    gap: float = np.inf


def to_gap(
    method: Callable[..., Any], parts: Sequence[Any], best: float, gap: float, **settings: Any
) -> Run:
    """Run a method in one process until |Σ f_i(θ_i) − best| is at most the gap."""

    def off(models: Sequence[Any]) -> float:
        values = (part.value(model) for part, model in zip(parts, models, strict=True))
        return abs(sum(values) - best)

    def work(comm: in_process.InProcess) -> Result:
        def watch(_step: int, model: Any) -> bool:
            return off(comm.confer(model)) <= gap

        result: Result = method(comm, parts[comm.rank], watch=watch, **settings)
        return result

    ends = in_process.run(len(parts), work)
    uploads = sum(end.uploads for end in ends)
    return Run(ends[0].steps, uploads, off([end.model for end in ends]))


def refusal(method: Callable[..., Any], parts: Sequence[Any], **settings: Any) -> str:
    """Return the text of the ValueError that a method raises, the same on all ranks."""
    outcomes = in_process.outcomes_of(
        len(parts), lambda comm: method(comm, parts[comm.rank], **settings)
    )
    assert all(isinstance(outcome, ValueError) for outcome in outcomes), outcomes
    (said,) = {str(outcome) for outcome in outcomes}
    return said
