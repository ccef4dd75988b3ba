# SPDX-License-Identifier: Apache-2.0
"""The configuration of a training run, equal for workers and reference."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from p4reduce.compression import compressor_by_name

from p4reduce_lab.errors import LabError

# What is in the run's directory; the launcher writes the first two, workers and reference the rest.
CONFIG_FILE = "config.json"
DATA_FILE = "digits.npz"
CURVE_FILE = "curve.json"
REFERENCE_FILE = "reference.json"
FAULT_FILE = "fault"  # is there once the fault has happened
COMPARED_STAGE = "compared"  # a directory: the training that the run's own is compared with

UNCOMPRESSED = "none"
KILL_WORKER = "kill-worker"
RESTART_SWITCH = "restart-switch"
NO_FAULT = "none"


@dataclass(frozen=True)
class TrainingConfig:
    """Hyperparameters and seeds. The defaults reach about 97 % on scikit-learn's digits.

    Attributes:
        workers: World size; the global batch is split over that many ranks.
        steps: Optimiser steps.
        batch: Samples in a global batch, over all ranks.
        hidden: Width of the hidden layer.
        learning_rate, momentum: Of SGD with heavy-ball momentum.
        seed: Of the split of the data, the initial weights and the order of the batches.
        evaluate_every: Steps between two looks at the test accuracy.
        compression: A name that :func:`p4reduce.compression.compressor_by_name` knows. With
            another one than "none" the training runs twice: uncompressed, to compare with, and
            compressed.
        fault: "none", or "kill-worker", "restart-switch" or "restart-controller" after a third of
            the steps. Then too the training runs twice, undisturbed and with the fault.
    """

    workers: int = 4
    steps: int = 330
    batch: int = 128
    hidden: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 1
    evaluate_every: int = 5
    compression: str = UNCOMPRESSED
    fault: str = NO_FAULT

    @property
    def compresses(self) -> bool:
        """Whether the gradient is compressed."""
        return self.compression != UNCOMPRESSED

    def compressed(self) -> TrainingConfig:
        """Return the configuration with the optimiser of the compressed training.

        With error feedback and a fixed level that is SGD without momentum, of the same step in the
        long run, learning_rate / (1 - momentum). What is not sent arrives 1/share steps late on
        average; momentum makes each such arrival count for 1 / (1 - momentum) steps more, and the
        two together overshoot (docs/experiments.md, "Momentum"). CAT with feedback is left as it
        is: it sends more as soon as what waits loses its worth.
        """
        compressor = compressor_by_name(self.compression, self.workers)
        if not compressor.feedback or compressor.prices:
            return self
        rate = self.learning_rate / (1 - self.momentum)
        return replace(self, learning_rate=rate, momentum=0.0)

    @property
    def faulty(self) -> bool:
        """Whether a process is killed during the training."""
        return self.fault != NO_FAULT

    @property
    def compares(self) -> bool:
        """Whether another training runs before, for comparison."""
        return self.compresses or self.faulty

    @property
    def fault_step(self) -> int:
        """The number of steps at about which the fault happens."""
        return max(1, self.steps // 3)

    @property
    def last_step_before_fault(self) -> int:
        """After how many steps rank 0 waits for the fault."""
        return max(self.fault_step, 2 * self.steps // 3)

    def __post_init__(self) -> None:
        if self.faulty and self.compresses:
            raise LabError("a fault and a compression in one run; show one at a time")
        if self.fault == KILL_WORKER and self.workers < 2:
            raise LabError(f"{KILL_WORKER} needs other workers; take 2 or more")
        try:
            compressor_by_name(self.compression, self.workers)
        except ValueError as error:
            raise LabError(str(error)) from error

    def save(self, path: Path) -> None:
        """Write it as JSON, for the workers."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> TrainingConfig:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(path.read_text()))
