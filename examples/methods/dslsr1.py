# SPDX-License-Identifier: Apache-2.0
"""DS-LSR1 on a network for digits, beside its naive form and gradient descent.

p4reduce-lab exec -n 4 -- python examples/methods/dslsr1.py [--plot FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.methods.curved_network import CurvedNetwork
from p4reduce.methods.dslsr1 import dslsr1
from p4reduce.methods.gd import gd
from sklearn.datasets import load_digits

HIDDEN, CLASSES, TRAINED = 32, 10, 1200
# Of the mean loss, for gradient descent: 1.0 was the best of 0.1, 0.2, 0.5, 1 and 2 (2 diverges).
RATE = 1.0
Curve = list[tuple[int, float, float]]  # steps, loss, MB sent per rank


class FromStart:
    """Shifts a part's model by `start`, as `gd` begins at zeros."""

    def __init__(self, part: CurvedNetwork, start: Any) -> None:
        self._part, self._start = part, start
        self.size = part.size

    def gradient(self, model: Any) -> Any:
        return self._part.gradient(self._start + model)

    def trouble(self) -> str:
        return self._part.trouble()


def main() -> None:
    """Trains with 16 pairs, with 16 that travel themselves, with 32, and by gradient descent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plot", type=Path, help="draw loss against steps and bytes")
    options = parser.parse_args()
    data = load_digits()
    features, labels = data.data / 16, data.target
    with p4reduce.init() as comm:
        parts = [
            CurvedNetwork(*some, HIDDEN, CLASSES)
            for some in zip(
                np.array_split(features[:TRAINED], comm.size),
                np.array_split(labels[:TRAINED], comm.size),
                strict=True,
            )
        ]
        mine, start = parts[comm.rank], parts[0].start(0)
        curves: dict[str, Curve] = {}

        def run(name: str, train: Callable[[Any], Any], shift: Any = 0.0) -> None:
            """Train, with a look at the loss of all parts after each step."""
            curve: Curve = curves.setdefault(name, [])
            before = comm.stats.bytes_sent

            def watch(step: int, model: Any) -> None:
                loss = sum(part.value(model + shift) for part in parts) / comm.size
                curve.append((step, loss, (comm.stats.bytes_sent - before) / 1e6))

            model = train(watch).model + shift
            right = mine.score(model, features[TRAINED:], labels[TRAINED:])
            if comm.rank == 0:
                steps, loss, sent = curve[-1]
                each = 1e3 * sent / steps
                print(
                    f"{name:20} {steps:4} steps: loss {loss:.4f}, {right:.1%} right, "
                    f"{each:5.1f} kB sent per rank and step, {sent:5.2f} MB in all"
                )

        for name, memory, naive in (
            ("DS-LSR1, m = 16", 16, False),
            ("naive, m = 16", 16, True),
            ("DS-LSR1, m = 32", 32, False),
        ):
            settings = {"steps": options.steps, "memory": memory, "naive": naive, "start": start}
            run(name, lambda watch: dslsr1(comm, mine, watch=watch, **settings))  # noqa: B023
        run(
            "gradient descent",
            lambda watch: gd(
                comm,
                FromStart(mine, start),
                rate=RATE / comm.size,
                steps=6 * options.steps,
                watch=watch,
            ),
            start,
        )
        if options.plot is not None and comm.rank == 0:
            draw(curves, comm.size, options.plot)


def draw(curves: dict[str, Curve], ranks: int, path: Path) -> None:
    """Loss against steps, and against bytes."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for name, curve in curves.items():
        steps, losses, sent = zip(*curve, strict=True)
        style = {"ls": "--", "alpha": 0.8} if name.startswith("naive") else {}
        left.plot(steps, losses, label=name, **style)
        right.plot(sent, losses, label=name, **style)
    left.set(yscale="log", xscale="log", xlabel="steps", ylabel="mean loss")
    right.set(xscale="log", xlabel="MB sent per rank")
    left.set_title(f"digits, a network of 2,410 parameters, {ranks} ranks", fontsize=10)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
