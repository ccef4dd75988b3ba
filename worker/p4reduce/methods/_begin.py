# SPDX-License-Identifier: Apache-2.0
"""How a training method begins: all ranks have usable parts, and the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from p4reduce.methods._checks import first_of
from p4reduce.methods._communicator import Array, Comm
from p4reduce.methods.meeting import Facts, meet
from p4reduce.methods.problems import Problem


class Part(Protocol):
    """What begins has a size, and knows what is wrong with it; see `problems.Problem`."""

    size: int

    def trouble(self) -> str:
        """What is wrong with this rank's data; empty if nothing is."""
        ...


def begin(
    comm: Comm,
    method: str,
    problem: Part,
    settings: Mapping[str, float],
    *troubles: str,
    facts: Mapping[str, int] | None = None,
    same: Mapping[str, int] | None = None,
    counted: str = "features",
) -> dict[str, Facts]:
    """Meet the other ranks, and refuse bad data and settings on all of them.

    Args:
        comm: all ranks call this.
        method: what is about to begin, for the message.
        problem: this rank's part; its size has to be the same on all ranks.
        settings: numbers that have to be the same on all ranks.
        troubles: what is wrong on this rank besides its data; empty ones do not count.
        facts: more integers for the other ranks.
        same: integers that have to be the same on all ranks, such as a `meeting.checksum`.
        counted: what the part's size is the number of.

    Returns:
        The facts of all ranks, by rank: shape (ranks,).

    Raises:
        ValueError: on all ranks with the same text, which names the ranks and what is wrong.
    """
    trouble = first_of(problem.trouble(), *troubles)
    own = {counted: problem.size, **(same or {}), **(facts or {})}
    equal = (counted, *(same or {}))
    return meet(comm, method, trouble or None, own, same=equal, settings=settings)


def solved(problem: Problem, linear: Array, quadratic: float) -> Array:
    """A local solve; NaN if it fails, for `finite_sum` to tell all ranks."""
    try:
        return problem.proximal(linear, quadratic)
    except ValueError:
        return np.full(problem.size, np.nan)


def solvable(problem: Problem, *quadratics: float) -> str:
    """The trouble with local solves with these quadratic terms; empty if they work."""
    if problem.trouble():
        return ""
    try:
        for quadratic in quadratics:
            problem.proximal(np.zeros(problem.size), quadratic)
    except ValueError as error:
        return str(error)
    return ""
