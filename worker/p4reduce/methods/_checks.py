# SPDX-License-Identifier: Apache-2.0
"""Checks of settings: each returns what is wrong in words; empty if nothing is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def real(numbers: Any) -> npt.NDArray[np.float64]:
    """Return numbers as float64. Raises TypeError or ValueError for anything else."""
    array = np.asarray(numbers)
    if np.iscomplexobj(array):
        raise TypeError("Complex data not supported")
    return np.asarray(array, np.float64)


def positive(name: str, value: float) -> str:
    """Return what is wrong with a number that must be finite and positive."""
    if not (math.isfinite(value) and value > 0):
        return f"{name}={value:g}: a positive number is needed"
    return ""


def at_least(name: str, value: int, least: int) -> str:
    """Return what is wrong with a count that has a minimum."""
    if not isinstance(value, int | np.integer):
        return f"{name}={value}: a whole number is needed"
    return "" if value >= least else f"{name}={value}: at least {least} is needed"


def first_of(*troubles: str) -> str:
    """Return the first text that is not empty."""
    return next((trouble for trouble in troubles if trouble), "")
