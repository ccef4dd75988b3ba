# SPDX-License-Identifier: Apache-2.0
"""The same training in one process: ``python -m p4reduce_lab.demo.training.reference DIRECTORY``.

The ranks' gradients are summed by numpy in float64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from p4reduce_lab.demo.config import CONFIG_FILE, DATA_FILE, REFERENCE_FILE, TrainingConfig
from p4reduce_lab.demo.training.data import Digits
from p4reduce_lab.demo.training.model import Floats
from p4reduce_lab.demo.training.sgd import SgdStep, train


class NumpyAggregator:
    """Stands for all ranks: computes their parts one after the other, and adds them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def aggregate(self, step: SgdStep, gradient: Floats) -> float:
        """Aggregate a gradient: see :class:`~p4reduce_lab.demo.training.sgd.Aggregator`."""
        total = np.zeros(gradient.shape, np.float64)
        loss = 0.0
        for rank in range(self._workers):
            for name, tensor in step.backward(rank, self._workers, gradient):
                if name == "loss":
                    loss += float(tensor[0])
            total += gradient
        gradient[...] = total
        return loss


def run_reference(directory: Path) -> None:
    """Trains without a network, as ``directory``'s configuration says, and leaves the curve there.
    Its last accuracy is that of the final weights."""
    config = TrainingConfig.load(directory / CONFIG_FILE)
    digits = Digits.load(directory / DATA_FILE)
    _, curve = train(config, digits, NumpyAggregator(config.workers))
    curve.save(directory / REFERENCE_FILE)


if __name__ == "__main__":
    run_reference(Path(sys.argv[1]))
