# SPDX-License-Identifier: Apache-2.0
"""A classifier of handwritten digits on all ranks, beside one process on all of the data.

p4reduce-lab exec -n 4 -- python examples/digits.py

Needs scikit-learn for the digits: ``pip install 'p4reduce[demo]'``. Any launcher may start it: it
is also the job of docs/slurm.md and docs/kubernetes.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import p4reduce
from sklearn.datasets import load_digits

STEPS, RATE, MOMENTUM, TESTED = 150, 0.5, 0.9, 400
Array = npt.NDArray[np.float32]


def data() -> tuple[Array, Array]:
    """Images in rows, with a 1 for the intercept, and the digit of each as one of ten columns."""
    digits = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    images = np.append(digits.data[order] / 16, np.ones((len(order), 1)), axis=1)
    return images.astype(np.float32), np.eye(10, dtype=np.float32)[digits.target[order]]


def learn(
    images: Array, labels: Array, samples: int, steps: int, total: Callable[[Array], Array]
) -> Array:
    """Return weights (65, 10) of a softmax regression, by gradient descent with momentum.

    Args:
        images: this rank's rows.
        labels: of them.
        samples: rows of all ranks.
        steps: of the descent.
        total: the sum of an array over all ranks.
    """
    weights: Array = np.zeros((images.shape[1], labels.shape[1]), np.float32)
    velocity: Array = np.zeros_like(weights)
    for _ in range(steps):
        scores = images @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        gradient = total(images.T @ (chances - labels))
        velocity = MOMENTUM * velocity + gradient / np.float32(samples)
        weights = weights - RATE * velocity
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of gradient descent")
    steps = parser.parse_args().steps
    images, labels = data()
    tested, digits = images[-TESTED:], labels[-TESTED:].argmax(axis=1)
    images, labels = images[:-TESTED], labels[:-TESTED]

    def accuracy(weights: Array) -> float:
        return float(((tested @ weights).argmax(axis=1) == digits).mean())

    with p4reduce.init() as comm:
        mine = slice(comm.rank, None, comm.size)
        weights = learn(images[mine], labels[mine], len(images), steps, comm.allreduce)
        print(f"accuracy of {comm.size} ranks: {accuracy(weights):.4f}", flush=True)
        if comm.rank == 0:
            alone = learn(images, labels, len(images), steps, lambda gradient: gradient)
            print(f"accuracy of one process: {accuracy(alone):.4f}")
            print(f"weights differ by at most {np.abs(weights - alone).max():.1e}")


if __name__ == "__main__":
    main()
