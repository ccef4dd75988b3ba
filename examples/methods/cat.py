# SPDX-License-Identifier: Apache-2.0
"""Gradient descent that sends the blocks that pay, beside one that sends all. Run it with

p4reduce-lab exec -n 8 -- python examples/methods/cat.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import p4reduce
from p4reduce.methods.cat import cat
from p4reduce.methods.gd import gd
from p4reduce.methods.problems import LeastSquares

BLOCKS, LANES, SAMPLES = 8, 256, 100


def main() -> None:
    """Trains on features of which each 256 have half the scale of those before."""
    with p4reduce.init() as comm:
        size = BLOCKS * LANES
        random = np.random.default_rng(0)
        scales = np.repeat(0.5 ** np.arange(BLOCKS), LANES)
        features = random.standard_normal((comm.size * SAMPLES, size)) * scales
        targets = features @ random.standard_normal(size)
        mine = slice(comm.rank * SAMPLES, (comm.rank + 1) * SAMPLES)
        problem = LeastSquares(features[mine], targets[mine])
        whole = LeastSquares(features, targets)
        start = whole.value(np.zeros(size))

        def watch(_step: int, model: Any) -> bool:
            return whole.value(model) < 0.01 * start

        for name, method, more in (
            ("gradient descent", gd, {}),
            ("CAT", cat, {"bandwidth": 1e7}),
            ("CAT, each rank by itself", cat, {"bandwidth": 1e7, "compression": "cat:own"}),
        ):
            before = comm.stats.bytes_sent
            end = method(comm, problem, rate=1 / whole.smoothness(), steps=500, watch=watch, **more)
            if comm.rank == 0:
                print(
                    f"{name:25} {whole.value(end.model) / start:.4f} of the objective is left, "
                    f"{(comm.stats.bytes_sent - before) / 1e3:7.1f} kB sent per rank"
                )


if __name__ == "__main__":
    main()
