# SPDX-License-Identifier: Apache-2.0
"""Lab 7: lazily aggregated gradients."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

XI, DEPTH = 0.1, 10


def train(comm: Any, problem: Any, rate: float, steps: int) -> Any:
    """Minimise the sum of all ranks' losses.

    Args:
        comm: the ranks: comm.rank, comm.size, comm.allreduce(array).
        problem: this rank's loss: problem.size numbers, problem.gradient(model).
        rate: of a step.
        steps: how many.

    Returns:
        The model, the same on all ranks.
    """
    model = np.zeros(problem.size)
    uploaded = np.zeros(problem.size)  # this rank's gradient as the others know it
    total = np.zeros(problem.size)
    moves: deque[float] = deque(maxlen=DEPTH)
    for step in range(steps):
        change = problem.gradient(model) - uploaded
        allowed = XI / (rate * comm.size) ** 2 * sum(moves)
        if step and change @ change <= allowed:
            change = np.zeros_like(change)
        total = total + comm.allreduce(change)
        uploaded = uploaded + change
        move = -rate * total
        model = model + move
        moves.append(float(move @ move))
    return model
