# SPDX-License-Identifier: Apache-2.0
"""The course of a training: loss per step, and test accuracy at some steps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Curve:
    """``losses[i]`` is the mean loss of global batch i, before step i + 1 changes the weights;
    ``accuracies[j]`` the test accuracy after ``accuracy_steps[j]`` steps."""

    losses: list[float] = field(default_factory=list)
    accuracy_steps: list[int] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Curve:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(path.read_text()))
