# SPDX-License-Identifier: Apache-2.0
"""How a training method starts: all ranks have usable data and equal settings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p4reduce.methods._checks import first_of
from p4reduce.methods._communicator import Array, Comm
from p4reduce.methods.meeting import Facts, meet
from p4reduce.methods.rank_data import Proximal, RankData


def begin(
    comm: Comm,
    method: str,
    problem: RankData,
    settings: Mapping[str, float],
    *troubles: str,
    facts: Mapping[str, int] | None = None,
    same: Mapping[str, int] | None = None,
    counted: str = "features",
) -> dict[str, Facts]:
    """Check data and settings of all ranks together, and refuse bad ones on all of them.

    Args:
        comm: all ranks call this.
        method: the name of the method, for the message.
        problem: this rank's part; its size must be equal on all ranks.
        settings: numbers that must be equal on all ranks.
        troubles: what else is wrong on this rank; empty texts do not count.
        facts: more integers for the other ranks.
        same: integers that must be equal on all ranks, such as a `meeting.checksum`.
        counted: what the part's size counts.

    Returns:
        The facts of all ranks, by rank: shape (ranks,).

    Raises:
        ValueError: on all ranks with the same text, which names the ranks and what is wrong.
    """
    trouble = first_of(problem.trouble(), *troubles)
    own = {counted: problem.size, **(same or {}), **(facts or {})}
    equal = (counted, *(same or {}))
    return meet(comm, method, trouble or None, own, same=equal, settings=settings)


def solved(problem: Proximal, linear: Array, quadratic: float) -> Array:
    """Return a local solution, or NaN if solving fails, so `finite_sum` informs all ranks."""
    try:
        return problem.proximal(linear, quadratic)
    except ValueError:
        return np.full(problem.size, np.nan)


def solvable(problem: Proximal, *quadratics: float) -> str:
    """Return why local problems with these quadratic terms cannot be solved; empty if they can."""
    if problem.trouble():
        return ""
    try:
        for quadratic in quadratics:
            problem.proximal(np.zeros(problem.size), quadratic)
    except ValueError as error:
        return str(error)
    return ""
