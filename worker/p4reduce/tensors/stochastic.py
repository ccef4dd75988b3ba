# SPDX-License-Identifier: Apache-2.0
"""Floats to lanes of 16, 8 or 4 bits and back, rounded at random so that errors average out.

Exponents are agreed as in `tensors.quantise`, so |x| < 2^e on all ranks. With world size n and lane
maximum L, the limit is M = L // n and a lane's unit is u = 2^e / M. A number x / u is rounded up
with a probability equal to its fraction, else down. So the expected lane is x / u itself, as in
QSGD (Alistarh et al., NIPS 2017).

**No overflow.** x / u lies strictly between -M and M. It becomes a fixed-point number with 16 bits
after the point. First it is rounded to float32, which cannot lead beyond +-M, as M has at most 15
bits. Then it is rounded to a multiple of 2^-16, which cannot either. Noise of less than 1 is added
and the fraction cut off. So the lane is at least -M, and at most M, as M + noise < M + 1. Nothing
has to be held back, which would spoil the expectation; and n lanes add up to no more than L.

**Error bound.** A lane is off by less than 1 after rounding and by M * 2^-24 at most before, so

    |result - sum of x| <= n * (u + 2^(e-24)) = n * 2^e * (1 / M + 2^-24)

before the result is rounded to the output's dtype. The expected lane is right to within 2^-17 of a
unit, the half of the last bit after the point, and float32's own rounding.
"""

from __future__ import annotations

import functools

from p4reduce.tensors.noise import NOISE_BITS
from p4reduce.tensors.quantise import POWERS, LaneFactors
from p4reduce.wire.format import MAX_WORLD_SIZE, Format

_SMALLEST_LIMIT = 2  # of a lane: with less there is no bit left besides the sign


def largest_world_size(lane_format: Format) -> int:
    """Return the largest number of ranks that lanes of a format have room for.

    Lanes of 4 bits may be left with -1, 0 and 1 for each rank, as in TernGrad (Wen et al., NIPS
    2017). Wider lanes are chosen for more precision than that.
    """
    smallest = 1 if lane_format is Format.INT4 else _SMALLEST_LIMIT
    return min(MAX_WORLD_SIZE, lane_format.lane_maximum // smallest)


@functools.cache
def factors_at_random(lane_format: Format, world_size: int, mean: bool) -> LaneFactors:
    """Return the factors of lanes of 16, 8 or 4 bits; a mean divides by the world size.

    Scales are 1 / u, times 2^16. 2^128 is no float32: so factors are 2^e / 2, and the other half
    is in the divisor.
    """
    limit = lane_format.lane_maximum // world_size
    scales = (limit << NOISE_BITS) / POWERS
    return LaneFactors(limit, scales, POWERS / 2, limit * (world_size if mean else 1) / 2)
