# SPDX-License-Identifier: Apache-2.0
"""Parties with different features of the same samples learn together; rank 0 has the labels.

Q local steps per exchange need Q times fewer exchanges. With masks the switch sees uniform bytes.
Run it with

p4reduce-lab exec -n 2 -- python examples/methods/fedbcd.py [--plot FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.methods import in_process
from p4reduce.methods.fedbcd import FedBCDSettings, Party, fedbcd_p, fedbcd_s
from p4reduce.methods.gathering import gather
from p4reduce.methods.problems import Logistic
from p4reduce.methods.result import Result
from sklearn import datasets

PENALTY = 1e-3
EXCHANGES = 470  # with one step each
GAP = 0.01
METHODS = (("parallel", fedbcd_p), ("sequence", fedbcd_s))
LOCAL_STEPS = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40)


def main() -> None:
    """Trains with Q = 1, 5 and 10, in parallel and in sequence, plain and hidden."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, help="draw rounds against Q, for two parties")
    options = parser.parse_args()
    data = datasets.load_breast_cancer()
    features, labels = standard(data.data), 2.0 * data.target - 1
    task = Logistic(features, labels, PENALTY, 1 / len(labels))
    least = task.value(task.proximal(np.zeros(task.size), 0.0))
    with p4reduce.init() as comm:
        parts = np.array_split(features, comm.size, axis=1)
        party = Party(parts[comm.rank], labels if comm.rank == 0 else None)
        for name, method in METHODS:
            for steps, hidden in ((1, False), (5, False), (10, False), (10, True)):
                settings = FedBCDSettings(
                    rate=0.5 / task.smoothness(),
                    rounds=EXCHANGES // steps,
                    local_steps=steps,
                    penalty=PENALTY,
                    hidden=hidden,
                )
                before = comm.stats.bytes_sent
                block = method(comm, party, settings).model
                sent = comm.stats.bytes_sent - before
                counts = [part.shape[1] for part in parts]
                model = gather(comm, block, "model", counts)
                if comm.rank == 0:
                    print(
                        f"{name}, Q = {steps:2}{', hidden' if hidden else '':8}: "
                        f"{settings.rounds:3} rounds, gap {task.value(model) - least:.5f}, "
                        f"{sent / 1e3:7.1f} kB sent per party"
                    )
        if options.plot is not None and comm.rank == 0:
            draw(options.plot)


def standard(features: Any) -> Any:
    """Columns of mean 0 and variance 1, without those that are the same everywhere."""
    features = features[:, features.std(axis=0) > 0]
    return (features - features.mean(axis=0)) / features.std(axis=0)


def rounds(features: Any, labels: Any, method: Any, steps: int) -> int | None:
    """How many two parties in this process need; None: more than with Q = 1."""
    task = Logistic(features, labels, PENALTY, 1 / len(labels))
    least = task.value(task.proximal(np.zeros(task.size), 0.0))
    parts = np.array_split(features, 2, axis=1)
    settings = FedBCDSettings(
        0.5 / task.smoothness(), EXCHANGES, local_steps=steps, penalty=PENALTY
    )

    def work(comm: in_process.InProcess) -> Result:
        def watch(_number: int, block: Any) -> bool:
            return bool(task.value(np.concatenate(comm.confer(block))) - least <= GAP)

        own = None if comm.rank else labels
        result: Result = method(comm, Party(parts[comm.rank], own), settings, watch=watch)
        return result

    end = in_process.run(2, work)[0]
    return end.steps if end.reason == "watch" else None


def draw(path: Path) -> None:
    """Rounds to the gap against Q; a cross where they are not enough."""
    from matplotlib import pyplot as plt

    cancer, digits = datasets.load_breast_cancer(), datasets.load_digits()
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8))
    for axes, title, data, labels in (
        (panels[0], "breast cancer", cancer, 2.0 * cancer.target - 1),
        (panels[1], "parity of digits", digits, 2.0 * (digits.target % 2) - 1),
    ):
        for (name, method), colour in zip(METHODS, ("tab:blue", "tab:orange"), strict=True):
            found = [rounds(standard(data.data), labels, method, q) for q in LOCAL_STEPS]
            there = [(q, n) for q, n in zip(LOCAL_STEPS, found, strict=True) if n is not None]
            axes.plot(*zip(*there, strict=True), "o-", color=colour, label=f"in {name}")
            missing = [q for q, n in zip(LOCAL_STEPS, found, strict=True) if n is None]
            axes.plot(missing, [EXCHANGES] * len(missing), "x", color=colour)
            if name == "parallel":
                ideal = [there[0][1] / q for q in LOCAL_STEPS]
                axes.plot(LOCAL_STEPS, ideal, ":", color="black", label="rounds(1) / Q")
        axes.set(xscale="log", yscale="log", xlabel="Q, local steps per exchange")
        axes.set_title(f"{title}, 2 parties; a cross: not reached", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"rounds to a gap of {GAP:g}")
    panels[0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
