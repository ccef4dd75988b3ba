# SPDX-License-Identifier: Apache-2.0
"""A linear regression by MPI, whose gradients the switch sums.

mpirun -n 4 python examples/mpi_allreduce.py
"""

from __future__ import annotations

import numpy as np
import p4reduce.mpi
from mpi4py import MPI

STEPS, SAMPLES, FEATURES = 200, 1000, 20


def main() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=FEATURES)
    with p4reduce.mpi.wrap(MPI.COMM_WORLD) as comm:
        mine = np.random.default_rng(100 + comm.rank)
        x = mine.normal(size=(SAMPLES, FEATURES))
        y = x @ truth
        weights, gradient = np.zeros(FEATURES), np.empty(FEATURES)
        for _ in range(STEPS):
            comm.Allreduce(x.T @ (x @ weights - y), gradient)
            weights -= 0.5 / (SAMPLES * comm.size) * gradient
        if comm.rank == 0:
            print(f"{comm.switched} gradients of {comm.size} ranks summed by the switch")
            print(f"off by at most {np.abs(weights - truth).max():.1e}")


if __name__ == "__main__":
    main()
