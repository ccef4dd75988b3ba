# SPDX-License-Identifier: Apache-2.0
"""Floats to integer lanes and back, with one exponent a block.

A switch adds integers. So the ranks agree on an exponent for each block one round before they send
it (SwitchML, Sapio et al., NSDI 2021, section 3.7), and scale their numbers by it. Each frame
carries the exponent of its rank's next block (`protocol.slots`), and the switch keeps the largest
(`offer_more` in p4src/v1model/slots.p4). The exponent is float32's own biased one. A block
has exponent E if the largest magnitude m in it has 2^(E-127) <= m < 2^(E-126). Subnormal ones have
E = 0, and E = 255 says NaN or infinity. Here are the factors for the machine code in
native/p4reduce_native/csrc/worker/lanes.c; `reference.numbers` says what it does with them.

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

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import MAX_WORLD_SIZE, NONFINITE_EXPONENT, Format

FLOAT32_SCALES_FROM = 40
"""From this exponent on, scale and its inverse are normal float32 numbers for every world size."""

POWERS = np.array([*(math.ldexp(1.0, e - 126) for e in range(NONFINITE_EXPONENT)), math.nan])
"""2^e by block exponent. Blocks with exponent 255 are never sent."""


@dataclass
class LaneFactors:
    """What machine code multiplies and divides by; tables have an entry for each block exponent.

    Attributes:
        limit: the largest magnitude of a lane.
        scales: lanes' units per 1.0, shape (256,).
        factors: a number is a sum of lanes / `divisor` * its block's factor, shape (256,).
        divisor: 1 for lanes of 32 bits, whose factors have a mean's world size in them.
        inexact: whether factors are no powers of two, so that float32 does not do.
        scales32, factors32: the tables as float32.
    """

    limit: int
    scales: npt.NDArray[np.float64]
    factors: npt.NDArray[np.float64]
    divisor: float = 1.0
    inexact: bool = False

    def __post_init__(self) -> None:
        with np.errstate(over="ignore", under="ignore"):
            self.scales32 = self.scales.astype(np.float32)
            self.factors32 = self.factors.astype(np.float32)


def headroom(world_size: int) -> int:
    """Return k of the module's text. Raises ValueError."""
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise ValueError(f"world size {world_size} is not within 1 to {MAX_WORLD_SIZE}")
    return ((Format.INT32.lane_maximum + 1) // world_size).bit_length() - 1


@functools.cache
def factors_to_nearest(world_size: int, mean: bool) -> LaneFactors:
    """Return the factors of lanes of 32 bits; a mean divides by the world size."""
    scales = math.ldexp(1.0, headroom(world_size)) / POWERS
    return LaneFactors(
        Format.INT32.lane_maximum // world_size,
        scales,
        1.0 / scales / (world_size if mean else 1),
        inexact=mean and world_size & (world_size - 1) != 0,
    )
