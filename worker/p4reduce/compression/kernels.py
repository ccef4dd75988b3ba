# SPDX-License-Identifier: Apache-2.0
"""What compressors and hooks do with all numbers of a gradient, in C.

native/p4reduce_native/csrc/worker/compress.h says what each function does to the last bit. Arrays
here are flat and C-contiguous, of float16, float32 or float64 in the machine's byte order. Calls
release the interpreter's lock.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce_native.c_header import CHeader, Functions
from p4reduce_native.library import engine

from p4reduce.tensors.copy_pool import CopyPool, PooledCopy
from p4reduce.tensors.measure import numbers_of

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_HEADER = CHeader("worker/compress.h")


@functools.cache
def _library() -> Functions:
    return _HEADER.functions(engine())


def usable(gradient: Array) -> Array:
    """Return a gradient as the functions here take it: its own memory where that is possible.

    Raises:
        TypeError: it has another type of floats.
    """
    flat = np.ascontiguousarray(gradient, gradient.dtype.newbyteorder("=")).reshape(-1)
    if flat.dtype.char not in "efd":
        raise TypeError(
            f"an array of {gradient.dtype} was given; float16, float32 or float64 is needed"
        )
    return flat


class _Lent:
    """Memory for one array. It goes back when the array and its views are gone."""

    def __init__(self, kept: PooledCopy) -> None:
        self._kept = kept
        self.__array_interface__ = kept.rows.__array_interface__


def lend(spare: CopyPool, size: int, dtype: np.dtype[Any]) -> Array:
    """Return an array that is not yet filled, in memory that others have released."""
    return np.asarray(_Lent(spare.take(1, size, dtype))).reshape(-1)


def want(
    gradient: Array,
    residual: Array | None,
    unit: int,
    *,
    wanted: Array | None = None,
    own: FloatArray | None = None,
    energies: FloatArray | None = None,
    before: Array | None = None,
    products: FloatArray | None = None,
) -> bool:
    """Add the residual to a gradient, in one pass with all else that is asked for.

    Args:
        gradient: of this step.
        residual: what waits of earlier steps; needs `wanted`.
        unit: elements whose squares are summed.
        wanted: takes the sum.
        own: takes the squared 2-norms of the gradient's units.
        energies: takes those of the sum's.
        before: the gradient of the step before; becomes this one.
        products: of `before` and gradient, and of residual and gradient; shape (2,).

    Returns:
        Whether everything is finite and less than 2^128; what was written means nothing if not.
    """
    finite: int = _library().p4r_units_want(
        numbers_of(gradient.dtype),
        _at(gradient),
        _at(residual),
        gradient.size,
        unit,
        _at(wanted),
        _at(own),
        _at(energies),
        _at(before),
        _at(products),
    )
    return bool(finite)


def keep(
    wanted: Array,
    units: Places,
    unit: int,
    values: Array,
    *,
    factors: FloatArray | None = None,
    magnitude: float = 0.0,
) -> Flags:
    """Write chosen units into zeros; return for each of them whether it has anything but zeros.

    Args:
        wanted: what is chosen from.
        units: their numbers, each once.
        unit: elements of each.
        values: holds zeros, and takes the units.
        factors: multiply the units; in the order of `units`.
        magnitude: of all elements, if only their signs are kept.
    """
    some = np.empty(len(units), np.bool_)
    _library().p4r_units_keep(
        numbers_of(wanted.dtype),
        _at(wanted),
        wanted.size,
        unit,
        _at(units),
        len(units),
        _at(factors),
        magnitude,
        _at(values),
        _at(some),
    )
    return some


def subtract(wanted: Array, values: Array, units: Places | None, unit: int) -> None:
    """Subtract what is sent from what was wanted, in place; of some units or all."""
    _library().p4r_units_subtract(
        numbers_of(wanted.dtype),
        _at(wanted),
        _at(values),
        wanted.size,
        unit,
        _at(units),
        0 if units is None else len(units),
    )


def look(values: Array, unit: int) -> tuple[bool, Flags]:
    """Return whether all is finite and less than 2^128, and which units are not all zeros."""
    some = np.empty(-(-values.size // unit), np.bool_)
    finite: int = _library().p4r_units_look(
        numbers_of(values.dtype), _at(values), values.size, unit, _at(some)
    )
    return bool(finite), some


def norms(values: Array, unit: int) -> tuple[FloatArray, Places]:
    """Return the 1-norm of each unit, and how many of its numbers are not zero."""
    units = -(-values.size // unit)
    sums, counts = np.empty(units), np.empty(units, np.int64)
    _library().p4r_units_norms(
        numbers_of(values.dtype), _at(values), values.size, unit, _at(sums), _at(counts)
    )
    return sums, counts


def largest(values: Array, count: int) -> Places:
    """Return where the largest magnitudes are, ascending; of equal ones the first.

    Args:
        values: floats, or integers of 8, 16 or 32 bits. NaN is larger than infinity.
        count: 0 to the number of values.
    """
    if not 0 <= count <= values.size:
        raise ValueError(f"count {count} is not within 0 to {values.size}")
    if values.dtype.char not in "efd" and (values.dtype.kind != "i" or values.itemsize > 4):
        raise TypeError(f"values of {values.dtype}: floats or integers of 32 bits are needed")
    places = np.empty(count, np.int64)
    _library().p4r_largest(
        numbers_of(values.dtype), values.itemsize, _at(values), values.size, count, _at(places)
    )
    return places


def votes(
    gradient: Array,
    residual: Array | None = None,
    *,
    shared: int,
    wanted: Array | None = None,
    means: npt.NDArray[np.float32] | None = None,
) -> tuple[bool, npt.NDArray[np.int8]]:
    """Return whether all is finite, and the signs: 1, -1, or 0 for zero and NaN.

    Args:
        gradient: of this step.
        residual: is added first; needs `wanted`.
        shared: numbers in a row that have one mean, a multiple of 256.
        wanted: takes the sum.
        means: takes the mean magnitude of each so many numbers.
    """
    signs = np.empty(gradient.size, np.int8)
    finite: int = _library().p4r_votes(
        numbers_of(gradient.dtype),
        _at(gradient),
        _at(residual),
        gradient.size,
        shared,
        _at(wanted),
        _at(signs),
        _at(means),
    )
    return bool(finite), signs


def majority(tallies: npt.NDArray[Any], more: float, result: Array) -> None:
    """Write the signs of tallies, which are int8 or int16, plus a number."""
    _library().p4r_votes_majority(
        numbers_of(result.dtype), _at(tallies), tallies.itemsize, tallies.size, more, _at(result)
    )


def settle_votes(
    wanted: Array,
    before: Array | None,
    means: npt.NDArray[np.float32],
    tallies: npt.NDArray[Any],
    result: Array,
    *,
    shared: int,
    ranks: int,
) -> None:
    """Write the mean that tallies stand for; leave in `wanted` what this rank's signs left out.

    Args:
        wanted: what this rank voted on.
        before: the residual before this step.
        means: the magnitude of each `shared` numbers, over all ranks.
        tallies: the sums of signs, int8 or int16.
        result: takes the mean; of the type of `wanted`.
        shared: numbers that have one magnitude.
        ranks: world size.
    """
    _library().p4r_votes_settle(
        numbers_of(wanted.dtype),
        _at(wanted),
        _at(before),
        wanted.size,
        shared,
        _at(means),
        _at(tallies),
        tallies.itemsize,
        ranks,
        _at(result),
    )


def _at(array: Array | None) -> int | None:
    if array is None:
        return None
    assert array.flags.c_contiguous, "C knows no strides"
    address: int = array.ctypes.data
    return address
