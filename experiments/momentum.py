# SPDX-License-Identifier: Apache-2.0
"""What momentum does to fixed levels with error feedback: the table of docs/experiments.md.

    .venv/bin/python experiments/momentum.py

The demo's network and data, four ranks in this process, summed by numpy; about a minute a core.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from p4reduce.compression import compressor_by_name
from p4reduce_lab.demo.config import TrainingConfig
from p4reduce_lab.demo.training.data import load_digits
from p4reduce_lab.demo.training.sgd import SgdStep, train

NAMES = ("none", "topk:0.1", "topk:0.03", "randomk:0.1", "randomk:0.3", "topk:0.3",
         "threshold:0.01", "cat")  # fmt: skip
OPTIMISERS = ((0.9, 0.1), (0.0, 1.0))  # momentum, rate

Floats = npt.NDArray[np.float32]


class Ranks:
    """All ranks: each sends what its compressor chooses."""

    def __init__(self, config: TrainingConfig) -> None:
        count = config.workers
        self._ranks = [compressor_by_name(config.compression, count) for _ in range(count)]

    def aggregate(self, step: SgdStep, gradient: Floats) -> float:
        """See `Aggregator` of the demo."""
        count, loss = len(self._ranks), 0.0
        parts = [np.zeros_like(gradient) for _ in range(count)]
        for rank, part in enumerate(parts):
            for name, tensor in step.backward(rank, count, part):
                loss += float(tensor[0]) if name == "loss" else 0.0
        pairs = list(zip(self._ranks, parts, strict=True))
        wanted = [one.propose("w", part) for one, part in pairs]
        proposed = [each for each in wanted if each is not None]
        agreed = np.sum(proposed, axis=0) if proposed else None
        sent = [one.compress("w", part, agreed).values for one, part in pairs]
        gradient[...] = np.sum(sent, axis=0, dtype=np.float64)
        for one in self._ranks:
            one.decompress("w", gradient)
        return loss


def main() -> None:
    """Prints a row a name."""
    print("compression     " + "".join(f"momentum {m:g}, rate {r:<6g}" for m, r in OPTIMISERS))
    for name in NAMES:
        row = f"{name:16}"
        for momentum, rate in OPTIMISERS:
            config = TrainingConfig(compression=name, momentum=momentum, learning_rate=rate)
            _, curve = train(config, load_digits(config.seed), Ranks(config))
            row += f"{curve.accuracies[-1]:<24.2%}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
