# SPDX-License-Identifier: Apache-2.0
"""Boosted trees from histograms that the switch adds up. Run it with

p4reduce-lab exec -n 8 -- python examples/methods/boosting.py
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import p4reduce
from p4reduce.methods.boosting import HistGradientBoostingClassifier
from sklearn import datasets, ensemble, model_selection


def main() -> None:
    """Grows trees on parts of the samples; the argument is the number of iterations, or 30."""
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with p4reduce.init() as comm:
        for name, load in (
            ("cancer", datasets.load_breast_cancer),
            ("digits", datasets.load_digits),
        ):
            data = load()
            split = model_selection.train_test_split(data.data, data.target, random_state=0)
            train, test, classes, wanted = split
            part = np.array_split(np.arange(len(train)), comm.size)[comm.rank]
            before = comm.stats.bytes_sent
            mine = HistGradientBoostingClassifier(comm, max_iter=iterations, max_bins=32)
            mine.fit(train[part], classes[part])
            sent = comm.stats.bytes_sent - before
            trees = sum(len(trees) for trees in mine.trees_)
            theirs = ensemble.HistGradientBoostingClassifier(max_iter=iterations)
            theirs.fit(train, classes)
            if comm.rank == 0:
                mark = hashlib.sha256(repr(mine.trees_).encode()).hexdigest()[:16]
                print(
                    f"{name}: {comm.size} ranks {mine.score(test, wanted):.3f}, scikit-learn "
                    f"{theirs.score(test, wanted):.3f}; {trees} trees of hash {mark}, "
                    f"{sent / trees / 1e3:.1f} kB sent per tree and rank"
                )


if __name__ == "__main__":
    main()
