# SPDX-License-Identifier: Apache-2.0
"""Floats to integer lanes and back, with one exponent a block.

A switch adds integers. So the ranks agree on an exponent for each block one round before they send
it (SwitchML, Sapio et al., NSDI 2021, section 3.7), and scale their numbers by it. Each frame
carries the exponent of its rank's next block (`protocol.slots`), and the switch keeps the largest
(`join_round` in p4src/include/aggregation.p4). The exponent is float32's own biased one. A block
has exponent E if the largest magnitude m in it has 2^(E-127) <= m < 2^(E-126). Subnormal ones have
E = 0, and E = 255 says NaN or infinity. This is the reference of the machine code in
native/p4reduce_native/csrc/worker/lanes.c.

With world size n and lane maximum L, the scale is 2^k / 2^(E-126), where k is the largest integer
with n * 2^k <= L + 1. It is a power of two, so that scaling a float32 loses nothing. Lanes are
rounded to nearest and held within +-(L // n): n of them never overflow, whatever the data.

**Error bound.** With |x| < 2^e (e = E - 126), each rank rounds by at most 1/2 of a lane's unit, or
by 1 where it is held back at the limit, so that

    |result - sum of x| <= n * 2^(e-k)      and      2^k > (L + 1) / (2 n),

before the result is rounded to the output's dtype. With 32-bit lanes and 4 ranks that is 2^-27 of
the power of two above the block's largest magnitude, below float32's own rounding of 2^-24.
Magnitudes below 2^-126 have the absolute error of exponent 0.

Sums of integers have no order: the result is the same bit for bit on all ranks and in all runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import ValueRangeError
from p4reduce.wire.format import MAX_WORLD_SIZE, NONFINITE_EXPONENT, Format

Rows = npt.NDArray[Any]
"""Shape (rows, lanes of a block)."""

FLOAT32_SCALES_FROM = 40
"""From this exponent on, scale and its inverse are normal float32 numbers for every world size."""

_ROWS_AT_A_TIME = 512  # keeps the temporary array within a core's cache

_MAGNITUDE_BITS = {4: np.uint32(0x7FFFFFFF), 8: np.uint64(0x7FFFFFFFFFFFFFFF)}
_FLOAT64_TO_FLOAT32_BIAS = 1023 - 127


def block_exponents(
    rows: Rows, exponents: npt.NDArray[np.uint8], nonzero: npt.NDArray[np.bool_]
) -> None:
    """Find each block's exponent, and whether it holds anything but zeros.

    Args:
        rows: float16, float32, float64 or integers, shape (blocks, lanes). For integers the
            exponents are 0, as they mean nothing.
        exponents: shape (blocks,), is written to.
        nonzero: shape (blocks,), is written to.

    Raises:
        ValueRangeError: a float64 number is finite, but 2^128 or more.
    """
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        some = slice(start, start + _ROWS_AT_A_TIME)
        chunk = rows[some]
        if chunk.dtype.kind in "iu":
            exponents[some] = 0
            chunk.any(axis=1, out=nonzero[some])
            continue
        if chunk.dtype == np.float16:
            chunk = chunk.astype(np.float32)
        mask = _MAGNITUDE_BITS[chunk.itemsize]
        # The bits of non-negative IEEE 754 numbers are in the numbers' order, NaN being largest.
        largest = np.bitwise_and(chunk.view(mask.dtype), mask).max(axis=1)
        np.not_equal(largest, 0, out=nonzero[some])
        if chunk.dtype == np.float32:
            np.right_shift(largest, 23, out=exponents[some], casting="unsafe")
        else:
            exponents[some] = _exponents_of_float64(chunk, largest)


def _exponents_of_float64(rows: Rows, largest: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    wide = (largest >> np.uint64(52)).astype(np.int64)
    narrow = wide - _FLOAT64_TO_FLOAT32_BIAS
    finite = wide != 2047
    beyond = finite & (narrow >= NONFINITE_EXPONENT)
    if beyond.any():
        row = rows[int(np.argmax(beyond))]
        value = row[np.argmax(np.abs(row))]
        raise ValueRangeError(
            f"{value} is out of the range of float32 (magnitude 2^128 or more), which float64 "
            "arrays have to keep to as well; scale the array down"
        )
    return np.where(finite, np.clip(narrow, 0, None), NONFINITE_EXPONENT).astype(np.uint8)


class Quantiser:
    """Turns rows of floats into 32-bit lanes and sums of lanes into floats, for one world size.

    Attributes:
        limit: the largest magnitude of a lane, L // n.
        headroom: k of the module's text.
        scales, scales32: lanes' units per 1.0 by block exponent, float64 and float32.
        factors, factors32: the inverse, by what sums are divided by: 1 or the world size.
        mean_is_exact: whether the latter's are powers of two.
    """

    def __init__(self, world_size: int) -> None:
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise ValueError(f"world size {world_size} is not within 1 to {MAX_WORLD_SIZE}")
        maximum = Format.INT32.lane_maximum
        self.world_size = world_size
        self.limit = maximum // world_size
        self.headroom = ((maximum + 1) // world_size).bit_length() - 1
        # A float32 of 24 bits below 2^e, scaled, stays below 2^k by more than rounding adds if
        # k >= 24, and then never needs the limit.
        self._float32_never_clips = self.headroom >= 24
        powers = [math.ldexp(1.0, self.headroom + 126 - e) for e in range(NONFINITE_EXPONENT)]
        # Blocks with exponent 255 are never sent; the last entry only completes the table.
        self.scales = np.array([*powers, math.nan])
        with np.errstate(over="ignore", under="ignore"):
            self.scales32 = self.scales.astype(np.float32)
        self.factors = {1: 1.0 / self.scales, world_size: 1.0 / self.scales / world_size}
        with np.errstate(over="ignore", under="ignore"):
            self.factors32 = {
                divisor: factors.astype(np.float32) for divisor, factors in self.factors.items()
            }
        self.mean_is_exact = world_size & (world_size - 1) == 0

    def scale(self, exponent: int) -> float:
        """Return lanes' units per 1.0 at a block exponent."""
        return float(self.scales[exponent])

    def quantise(
        self,
        rows: Rows,
        exponents: npt.NDArray[np.uint8],
        lanes: Rows,
        noise: npt.NDArray[np.uint16] | None = None,
    ) -> None:
        """Round rows to lanes, to nearest.

        Args:
            rows: float32 or float64, shape (rows, lanes); used as scratch space.
            exponents: the agreed exponent of each row.
            lanes: big-endian integers, same shape, is written to.
            noise: not used; see `stochastic.StochasticQuantiser`.
        """
        if rows.dtype == np.float32 and not any_tiny(exponents):
            np.multiply(rows, self.scales32[exponents][:, None], out=rows)
            clip = not self._float32_never_clips
        else:
            rows = rows * self.scales[exponents][:, None]
            clip = True
        np.rint(rows, out=rows)
        if clip:
            np.clip(rows, -self.limit, self.limit, out=rows)
        np.copyto(lanes, rows, casting="unsafe")

    def dequantise(
        self,
        lanes: Rows,
        exponents: npt.NDArray[np.uint8],
        rows: Rows,
        *,
        mean: bool = False,
    ) -> None:
        """Turn sums back into floats, divided by the world size if `mean`.

        A sum beyond the range of the output's dtype becomes infinity, as in IEEE 754; whether
        numpy warns of that is the caller's choice (`numpy.errstate`).

        Args:
            lanes: sums, big-endian integers, shape (rows, lanes) or a part of the lanes.
            exponents: the agreed exponent of each row.
            rows: float32 or float64, same shape, is written to.
            mean: whether to divide by the world size.
        """
        divisor = self.world_size if mean else 1
        exact = not mean or self.mean_is_exact
        if rows.dtype == np.float32 and exact and not any_tiny(exponents):
            np.copyto(rows, lanes, casting="unsafe")
            np.multiply(rows, self.factors32[divisor][exponents][:, None], out=rows)
        else:
            wide = lanes.astype(np.float64)
            wide *= self.factors[divisor][exponents][:, None]
            np.copyto(rows, wide, casting="unsafe")


def any_tiny(exponents: npt.NDArray[np.uint8]) -> bool:
    """Whether a scale or its inverse is beyond float32's normal numbers for some exponent."""
    return bool(np.count_nonzero(exponents < FLOAT32_SCALES_FROM))
