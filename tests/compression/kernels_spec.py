# SPDX-License-Identifier: Apache-2.0
"""What the kernels of compression do, in plain numpy: csrc/worker/compress.h, line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def unit_rows(vector: Array, unit: int) -> Array:
    """A flat array as rows of `unit` elements, padded with zeros."""
    return np.concatenate([vector, np.zeros(-vector.size % unit, vector.dtype)]).reshape(-1, unit)


def eight_sums(numbers: Array) -> float:
    """Number i goes into sum i modulo 8."""
    parts = [0.0] * 8
    for at, number in enumerate(numbers.astype(np.float64).tolist()):
        parts[at % 8] += number
    a, b, c, d, e, f, g, h = parts
    return ((a + e) + (c + g)) + ((b + f) + (d + h))


def energies(vector: Array, unit: int) -> Array:
    wide = unit_rows(vector, unit).astype(np.float64)
    return np.array([eight_sums(row * row) for row in wide])


def product(one: Array, other: Array) -> float:
    return eight_sums(one.astype(np.float64) * other.astype(np.float64))


def wanted(gradient: Array, residual: Array | None) -> tuple[Array, bool]:
    with np.errstate(all="ignore"):
        total = gradient.copy() if residual is None else gradient + residual
    return total, bool((np.abs(total.astype(np.float64)) < 2.0**128).all())


def kept(
    whole: Array, units: Array, unit: int, factors: Array | None, magnitude: float
) -> tuple[Array, Array]:
    """The values that are sent, and which of the units are not all zeros."""
    values = np.zeros_like(whole)
    for at, number in enumerate(units):
        place = slice(number * unit, (number + 1) * unit)
        values[place] = whole[place]
        if magnitude:
            values[place] = np.sign(values[place]) * whole.dtype.type(magnitude)
        elif factors is not None:
            values[place] *= whole.dtype.type(factors[at])
    return values, unit_rows(values, unit).any(axis=1)[units]


def largest(values: Array, count: int) -> Array:
    """By a stable sort of all magnitudes; NaN is larger than infinity."""
    if values.dtype.kind == "f":
        magnitudes = np.where(np.isnan(values), np.inf, np.abs(values.astype(np.float64)))
        order = np.lexsort((-np.isnan(values).astype(int), -magnitudes))
    else:
        order = np.argsort(-np.abs(values.astype(np.int64)), kind="stable")
    return np.sort(order[:count])


def mean_magnitudes(whole: Array, shared: int) -> Array:
    parts = [whole[at : at + shared] for at in range(0, whole.size, shared)]
    return np.array([eight_sums(np.abs(part)) / part.size for part in parts], np.float32)


def settled(
    whole: Array, before: Array | None, means: Array, tallies: Array, shared: int, ranks: int
) -> tuple[Array, Array]:
    """What is left of `whole`, and the mean that the tallies stand for."""
    each = np.repeat(means, shared)[: whole.size]
    with np.errstate(all="ignore"):
        left = (whole.astype(np.float64) - np.sign(whole).astype(np.float64) * each).astype(
            np.float32 if whole.dtype != np.float64 else np.float64
        )
        left = left.astype(whole.dtype)
        result = (tallies.astype(np.float32) * (each / np.float32(ranks))).astype(whole.dtype)
    past = np.zeros_like(whole) if before is None else before
    own = np.where(np.isfinite(whole), whole, past)
    return np.where(np.isfinite(left), left, own), result
