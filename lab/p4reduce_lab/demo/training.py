# SPDX-License-Identifier: Apache-2.0
"""Synchronous data-parallel SGD, written once for both ways of summing the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4reduce_lab.demo.config import TrainingConfig
from p4reduce_lab.demo.curve import Curve
from p4reduce_lab.demo.data import Digits, global_batches, shard
from p4reduce_lab.demo.model import Floats, Momentum, Perceptron


@dataclass(frozen=True)
class Step:
    """One step of the training: its number from 0, and the backward pass of any rank's shard."""

    number: int
    _model: Perceptron
    _digits: Digits
    _batch: npt.NDArray[np.int64]
    _workers: int

    def backward(self, rank: int, gradient: Floats) -> Iterator[tuple[str, Floats]]:
        """Rank's part of the gradient, as :meth:`Perceptron.backward` yields it."""
        mine = shard(self._batch, rank, self._workers)
        return self._model.backward(
            self._digits.train_images[mine],
            self._digits.train_labels[mine],
            len(self._batch),
            gradient,
        )


class Aggregator(Protocol):
    """Sums the ranks' parts of a gradient."""

    def aggregate(self, step: Step, gradient: Floats) -> float:
        """Runs the backward pass of the rank (or ranks) it stands for, leaves the sum over all
        ranks in ``gradient`` and returns the summed loss."""


@dataclass(frozen=True)
class Progress:
    """Where a training is after ``step`` steps."""

    step: int
    loss: float
    accuracy: float | None


def train(
    config: TrainingConfig,
    digits: Digits,
    aggregator: Aggregator,
    on_step: Callable[[Progress], None] | None = None,
) -> tuple[Perceptron, Curve]:
    """Trains and returns the model with the course of the training.

    Everything random comes from ``config.seed``, so that all ranks and the reference start from
    the same weights and see the same batches.
    """
    model = Perceptron(digits.train_images.shape[1], config.hidden, config.seed)
    optimiser = Momentum(model.parameters, config.learning_rate, config.momentum)
    batches = global_batches(len(digits.train_images), config.batch, config.seed)
    gradient = np.zeros_like(model.parameters)
    curve = Curve()
    accuracy: float | None = None
    for number, batch in zip(range(config.steps), batches, strict=False):
        step = Step(number, model, digits, batch, config.workers)
        loss = aggregator.aggregate(step, gradient)
        optimiser.step(gradient)
        curve.losses.append(loss)
        done = number + 1
        if done % config.evaluate_every == 0 or done == config.steps:
            accuracy = model.accuracy(digits.test_images, digits.test_labels)
            curve.accuracy_steps.append(done)
            curve.accuracies.append(accuracy)
        if on_step is not None:
            on_step(Progress(done, loss, accuracy))
    return model, curve
