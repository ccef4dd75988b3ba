# SPDX-License-Identifier: Apache-2.0
"""Training with a slow rank that nobody waits for, by gradient coding or by a deadline.

Run it with

    p4reduce-lab exec -n 4 -- python examples/late.py
    p4reduce-lab exec -n 4 -- python examples/late.py --deadline 0.02

The last rank is slow. With coding each rank computes two parts, and the result is that of all
parts. With a deadline each rank computes one, and feedback adds the slow rank's gradients
later. See docs/late.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import p4reduce
from p4reduce.late import FractionalRepetition

SIZE = 1000
RATE = 0.1


def gradient(weights: np.ndarray, step: int, part: int) -> np.ndarray:
    """Of |weights - target|^2, as seen by one part of the data."""
    noise = np.random.default_rng((step, part)).standard_normal(SIZE)
    return (weights - np.arange(SIZE) + noise).astype(np.float32)


class Training:
    """A model that is nothing but its weights."""

    def __init__(self, pause: float) -> None:
        self.weights = np.zeros(SIZE, np.float32)
        self.steps = 0
        self.not_counted = 0
        self._pause = pause

    def compute(self, part: int) -> np.ndarray:
        """Return a part's gradient, as slowly as this rank is."""
        time.sleep(self._pause)
        return gradient(self.weights, self.steps, part)

    def apply(self, mean: np.ndarray, included: bool) -> None:
        self.weights -= RATE * mean
        self.steps += 1
        self.not_counted += not included


def train_coded(comm: p4reduce.Communicator, training: Training, steps: int) -> None:
    """Each rank computes two parts. A late rank skips a sum that is over."""
    with FractionalRepetition(comm, copies=2) as coded:
        while training.steps < steps:
            total = coded.sum(training.compute, "mean")
            training.apply(total.result, total.included)


def train_with_deadline(
    comm: p4reduce.Communicator, training: Training, steps: int, deadline: float
) -> None:
    """Each rank computes one part. A late rank catches up, and adds its part to a later sum."""
    sums = comm.partial_sums()
    while training.steps < steps:
        for missed in sums.catch_up():
            training.apply(missed.result / len(missed.members), False)
        if training.steps < steps:
            mine = training.compute(comm.rank)
            total = comm.allreduce(mine, "mean", deadline=deadline, at_least=2, feedback=True)
            training.apply(total.result, total.included)


def main() -> None:
    """Trains with a slow rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=float, help="seconds; instead of coding")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compute", type=float, default=0.01, help="seconds for a part")
    parser.add_argument("--slower", type=float, default=5.0, help="how much the last rank is")
    options = parser.parse_args()
    with p4reduce.init() as comm:
        slow = comm.rank == comm.size - 1
        training = Training(options.compute * (options.slower if slow else 1.0))
        start = time.perf_counter()
        if options.deadline is None:
            train_coded(comm, training, options.steps)
        else:
            train_with_deadline(comm, training, options.steps, options.deadline)
        seconds = (time.perf_counter() - start) / options.steps
        distance = float(np.abs(training.weights - np.arange(SIZE)).mean())
        print(
            f"rank {comm.rank}: {seconds * 1e3:.1f} ms per step, not counted in "
            f"{training.not_counted} of {options.steps} sums, distance {distance:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
