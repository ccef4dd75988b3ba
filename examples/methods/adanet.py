# SPDX-License-Identifier: Apache-2.0
"""An ensemble whose subnetworks are trained by different ranks. Run it with

p4reduce-lab exec -n 8 -- python examples/methods/adanet.py
"""

from __future__ import annotations

import p4reduce
from p4reduce.methods.adanet import AdaNetClassifier
from sklearn import datasets, model_selection


def main() -> None:
    """Learns handwritten digits; each rank trains a candidate per iteration."""
    data = datasets.load_digits()
    split = model_selection.train_test_split(data.data, data.target, random_state=0)
    train, test, classes, wanted = split
    with p4reduce.init() as comm:
        before = comm.stats.bytes_sent
        model = AdaNetClassifier(comm, max_iter=5, epochs=20).fit(train, classes)
        sent = comm.stats.bytes_sent - before
        score = model.score(test, wanted)
        each = model.subnetwork_scores(test, wanted)
        if comm.rank == 0:
            objectives = ", ".join(f"{objective:.4f}" for objective in model.objectives_)
            print(
                f"objective {objectives}\nsubnetworks of ranks {model.owners_}: "
                f"{', '.join(f'{one:.3f}' for one in each)}; the ensemble {score:.3f}; "
                f"{sent / 1e6:.1f} MB sent per rank"
            )


if __name__ == "__main__":
    main()
