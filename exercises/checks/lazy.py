# SPDX-License-Identifier: Apache-2.0
"""Lab 7: gradient descent whose ranks stay silent while their gradients hardly change (LAG-WK)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce.methods.in_process import InProcess, InProcessTraffic, run
from p4reduce.methods.lag import lag_wk
from p4reduce.methods.problems import LeastSquares, gadmm_synthetic

from exercises.checks.python_file import guarded, load
from exercises.checks.report import Check, WrongError

RANKS, STEPS, SEED = 6, 300, 7
MORE = 1.3  # times the uploads of the library's


def checks(source: Path) -> list[Check]:
    """What has to hold."""
    train = load(source, "train")

    @cache
    def outcome() -> tuple[list[Any], int]:
        traffic = InProcessTraffic()

        def work(comm: InProcess) -> Any:
            return train(comm, LeastSquares(*parts()[comm.rank]), rate(), STEPS)

        return guarded(source, lambda: run(RANKS, work, traffic)), traffic.uploads

    def alike() -> None:
        models, _ = outcome()
        for rank, model in enumerate(models):
            if model is None or np.shape(model) != np.shape(models[0]):
                raise WrongError(f"rank {rank} returned {model}", "return the model")
            if not np.array_equal(model, models[0]):
                raise WrongError(
                    f"rank {rank}'s model differs from rank 0's",
                    "step by what the switch has summed, which is the same for all ranks",
                )

    def converges() -> None:
        models, _ = outcome()
        found, plain = value(models[0]), value(descent())
        start, least = value(np.zeros(len(models[0]))), value(optimum())
        if not found - least <= max(10 * (plain - least), 1e-6 * (start - least)):
            raise WrongError(
                f"the loss is {found - least:.3g} above the least; gradient descent with the same "
                f"rate and {STEPS} steps is at {plain - least:.3g}",
                "sum the changes since each rank's last upload, and keep the total: the gradient "
                "of this step is the old total plus the sum. A silent rank adds zeros",
            )

    def silent() -> None:
        _, uploads = outcome()
        enough = library_uploads()
        if uploads > MORE * enough:
            raise WrongError(
                f"{uploads} uploads of {RANKS * STEPS} possible; p4reduce.methods.lag takes "
                f"{enough}",
                "a rank is silent while |change|^2 <= 0.1 / (rate * ranks)^2 * the sum of the last "
                "10 steps' squared lengths; zeros are not sent",
            )

    return [
        ("all ranks have the same model", alike),
        ("it converges as gradient descent does", converges),
        ("ranks are silent when their gradients hardly change", silent),
    ]


@cache
def parts() -> list[tuple[Any, Any]]:
    """Each rank's data, of very different smoothness."""
    return gadmm_synthetic(RANKS, SEED, 1.3)


def rate() -> float:
    """1/L."""
    total = sum(features.T @ features for features, _ in parts())
    return float(1 / np.linalg.eigvalsh(total)[-1])


def value(model: Any) -> float:
    """The loss."""
    return float(sum(LeastSquares(*part).value(model) for part in parts()))


@cache
def optimum() -> Any:
    """The best model."""
    features = np.concatenate([one for one, _ in parts()])
    return np.linalg.lstsq(features, np.concatenate([one for _, one in parts()]), rcond=None)[0]


@cache
def descent() -> Any:
    """Where gradient descent gets to."""
    model = np.zeros(parts()[0][0].shape[1])
    for _ in range(STEPS):
        model = model - rate() * sum(LeastSquares(*part).gradient(model) for part in parts())
    return model


@cache
def library_uploads() -> int:
    """How often ranks upload by the library's rule."""

    def work(comm: InProcess) -> int:
        return lag_wk(comm, LeastSquares(*parts()[comm.rank]), rate=rate(), steps=STEPS).uploads

    return sum(run(RANKS, work))
