# SPDX-License-Identifier: Apache-2.0
"""Training that outlives its workers: when one is lost, the others continue without it.

`p4reduce-lab exec` ends all when one ends, so leave a switch and a controller running in one shell,

    p4reduce-lab up

and start the ranks by hand, with what it prints in the environment:

    for rank in 0 1 2; do
        P4REDUCE_RANK=$rank P4REDUCE_WORLD_SIZE=3 python examples/elastic.py --kill 1 &
    done; wait

Rank 1 dies half-way. See docs/faults.md.
"""

from __future__ import annotations

import argparse
import os
import signal

import numpy as np
import p4reduce

STEPS = 200
RATE = 0.1


def gradient(weights: np.ndarray, step: int, rank: int, size: int) -> np.ndarray:
    """Of |weights - target|^2, as seen by one rank: with some noise of its own."""
    noise = np.random.default_rng((step, rank, size)).standard_normal(len(weights))
    return (weights - np.arange(len(weights)) + noise).astype(np.float32)


def main() -> None:
    """Trains a model that is nothing but its weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", type=int, default=-1, help="a rank that dies half-way")
    doomed = parser.parse_args().kill
    comm = p4reduce.init()
    weights: np.ndarray = np.zeros(1000, np.float32)
    step = 0
    while step < STEPS:
        if comm.rank == doomed and step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            mine = gradient(weights, step, comm.rank, comm.size)
            weights = weights - RATE * comm.allreduce(mine, op=p4reduce.MEAN)
            step += 1
        except p4reduce.WorkerLostError as error:
            print(f"rank {comm.rank}: {error}; going on without", flush=True)
            comm, doomed = comm.reform(), -1  # all that remain are at this step
    distance = float(np.abs(weights - np.arange(len(weights))).mean())
    print(f"rank {comm.rank} of {comm.size}: {step} steps, distance {distance:.3f}")
    comm.close()


if __name__ == "__main__":
    main()
