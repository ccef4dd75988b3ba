# SPDX-License-Identifier: Apache-2.0
"""The same training in one process, the ranks' gradients summed by numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p4reduce_lab.demo.config import TrainingConfig
from p4reduce_lab.demo.curve import Curve
from p4reduce_lab.demo.data import Digits
from p4reduce_lab.demo.model import Floats
from p4reduce_lab.demo.training import Step, train


class NumpyAggregator:
    """Stands for all ranks: computes their parts one after the other and adds them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def aggregate(self, step: Step, gradient: Floats) -> float:
        """See :class:`~p4reduce_lab.demo.training.Aggregator`."""
        total = np.zeros(gradient.shape, np.float64)
        loss = 0.0
        for rank in range(self._workers):
            for name, tensor in step.backward(rank, gradient):
                if name == "loss":
                    loss += float(tensor[0])
            total += gradient
        gradient[...] = total
        return loss


@dataclass(frozen=True)
class Reference:
    """What the switch's training is compared with."""

    curve: Curve
    accuracy: float


def train_reference(config: TrainingConfig, digits: Digits) -> Reference:
    """Trains without a network."""
    model, curve = train(config, digits, NumpyAggregator(config.workers))
    return Reference(curve, model.accuracy(digits.test_images, digits.test_labels))
