# SPDX-License-Identifier: Apache-2.0
"""What a training run is made of; the same for the workers and for the reference."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from p4reduce.compression import compressor_by_name

from p4reduce_lab.errors import LabError

# What is in the run's directory; the launcher writes the first two, workers and reference the rest.
CONFIG_FILE = "config.json"
DATA_FILE = "digits.npz"
CURVE_FILE = "curve.json"
REFERENCE_FILE = "reference.json"
UNCOMPRESSED_STAGE = "uncompressed"  # a directory: the training that a compressed one is beside

UNCOMPRESSED = "none"


@dataclass(frozen=True)
class TrainingConfig:
    """Hyperparameters and seeds. The defaults reach about 98 % on scikit-learn's digits.

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

    @property
    def compresses(self) -> bool:
        """Whether anything but the whole gradient is sent."""
        return self.compression != UNCOMPRESSED

    def __post_init__(self) -> None:
        for name in ("workers", "steps", "batch", "hidden", "evaluate_every"):
            if (value := getattr(self, name)) < 1:
                raise LabError(f"{name} is {value}; it must be at least 1")
        if self.batch < self.workers:
            raise LabError(
                f"batch is {self.batch}: too small for {self.workers} workers, "
                "each needs at least one sample"
            )
        try:
            compressor_by_name(self.compression, self.workers)
        except ValueError as error:
            raise LabError(str(error)) from error

    def save(self, path: Path) -> None:
        """Writes it as JSON, for the workers."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> TrainingConfig:
        """Reads what :meth:`save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{field.name: values[field.name] for field in fields(cls)})
