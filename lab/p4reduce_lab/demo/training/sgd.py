# SPDX-License-Identifier: Apache-2.0
"""Synchronous data-parallel SGD, written once for both ways of summing the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4reduce_lab.demo.config import TrainingConfig
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.demo.training.data import Digits, global_batches, shard
from p4reduce_lab.demo.training.model import Floats, Momentum, Perceptron


@dataclass(frozen=True)
class SgdStep:
    """A step of the training: its number from 0, and the backward pass of any rank's shard."""

    number: int
    _model: Perceptron
    _digits: Digits
    _batch: npt.NDArray[np.int64]

    def backward(self, rank: int, workers: int, gradient: Floats) -> Iterator[tuple[str, Floats]]:
        """Return the part of one of several ranks, as :meth:`Perceptron.backward` yields it."""
        mine = shard(self._batch, rank, workers)
        return self._model.backward(
            self._digits.train_images[mine],
            self._digits.train_labels[mine],
            len(self._batch),
            gradient,
        )


class FewerRanksError(Exception):
    """The step could not be summed because a rank was lost. The others continue without it.

    Args:
        adopt: takes the number of steps done and the training's state, and makes both the ones of
            rank 0: some ranks may have finished the step before the loss. All ranks call it.
    """

    def __init__(self, adopt: Callable[[int, Sequence[Floats]], int]) -> None:
        super().__init__("a rank was lost")
        self.adopt = adopt


class Aggregator(Protocol):
    """Sums the ranks' parts of a gradient."""

    def aggregate(self, step: SgdStep, gradient: Floats) -> float:
        """Runs the backward pass of the rank (or ranks) it stands for, leaves the sum over all
        ranks in ``gradient`` and returns the summed loss. Raises FewerRanksError."""


@dataclass(frozen=True)
class SgdProgress:
    """The state of a training after ``step`` steps."""

    step: int
    loss: float
    accuracy: float | None


def train(
    config: TrainingConfig,
    digits: Digits,
    aggregator: Aggregator,
    on_step: Callable[[SgdProgress], None] | None = None,
) -> tuple[Perceptron, Curve]:
    """Trains and returns the model with the course of the training.

    Everything random comes from ``config.seed``, so that all ranks and the reference start from
    the same weights and see the same batches.
    """
    model = Perceptron(digits.train_images.shape[1], config.hidden, config.seed)
    optimiser = Momentum(model.parameters, config.learning_rate, config.momentum)
    endless = global_batches(len(digits.train_images), config.batch, config.seed)
    batches = list(islice(endless, config.steps))
    gradient = np.zeros_like(model.parameters)
    curve = Curve()
    accuracy: float | None = None
    done = 0
    while done < config.steps:
        try:
            loss = aggregator.aggregate(SgdStep(done, model, digits, batches[done]), gradient)
        except FewerRanksError as error:
            done = error.adopt(done, (model.parameters, optimiser.velocity))
            continue
        optimiser.step(gradient)
        curve.losses.append(loss)
        done += 1
        if done % config.evaluate_every == 0 or done == config.steps:
            accuracy = model.accuracy(digits.test_images, digits.test_labels)
            curve.accuracy_steps.append(done)
            curve.accuracies.append(accuracy)
        if on_step is not None:
            on_step(SgdProgress(done, loss, accuracy))
    return model, curve
