# SPDX-License-Identifier: Apache-2.0
"""Parties with different features of the same samples learn together; rank 0 has the labels.

Q local steps per exchange need Q times fewer exchanges. With masks the switch sees uniform bytes.
Run it with

p4reduce-lab exec -n 2 -- python examples/methods/fedbcd.py
"""

from __future__ import annotations

import numpy as np
import p4reduce
from p4reduce.methods.fedbcd import Party, Settings, fedbcd_p, fedbcd_s
from p4reduce.methods.gathering import gather
from p4reduce.methods.problems import Logistic
from sklearn.datasets import load_breast_cancer

PENALTY = 1e-3
EXCHANGES = 470  # with one step each


def main() -> None:
    """Trains with Q = 1, 5 and 10, in parallel and in sequence, plain and hidden."""
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    labels = 2.0 * data.target - 1
    task = Logistic(features, labels, PENALTY, 1 / len(labels))
    least = task.value(task.proximal(np.zeros(task.size), 0.0))
    with p4reduce.init() as comm:
        parts = np.array_split(features, comm.size, axis=1)
        party = Party(parts[comm.rank], labels if comm.rank == 0 else None)
        for name, method in (("parallel", fedbcd_p), ("sequence", fedbcd_s)):
            for steps, hidden in ((1, False), (5, False), (10, False), (10, True)):
                settings = Settings(
                    rate=0.5 / task.smoothness(),
                    rounds=EXCHANGES // steps,
                    local_steps=steps,
                    penalty=PENALTY,
                    hidden=hidden,
                )
                before = comm.stats.bytes_sent
                block = method(comm, party, settings)
                sent = comm.stats.bytes_sent - before
                counts = [part.shape[1] for part in parts]
                model = gather(comm, block, "model", counts)
                if comm.rank == 0:
                    print(
                        f"{name}, Q = {steps:2}{', hidden' if hidden else '':8}: "
                        f"{settings.rounds:3} rounds, gap {task.value(model) - least:.5f}, "
                        f"{sent / 1e3:7.1f} kB sent per party"
                    )


if __name__ == "__main__":
    main()
