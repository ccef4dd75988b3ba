# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding to what lanes of 16, 8 or 4 bits can carry.

Rounded up with a probability equal to what rounding down would lose, a number keeps its mean
(QSGD, Alistarh et al., NIPS 2017; SparCML, Renggli et al., SC 2019, section 5.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import PAYLOAD_BYTES

LANE_BITS = (32, 16, 8, 4)


def lanes_of(lane_bits: int) -> int:
    """Return the number of elements in a block of 1,024 bytes.

    Raises:
        ValueError: not 32, 16, 8 or 4.
    """
    if lane_bits not in LANE_BITS:
        raise ValueError(f"lane_bits is {lane_bits}; the switch has lanes of 32, 16, 8 and 4 bits")
    return PAYLOAD_BYTES * 8 // lane_bits


def grid_spacing(largest: npt.NDArray[Any], lane_bits: int, world_size: int) -> npt.NDArray[Any]:
    """Return the distance between neighbouring values of a lane, per block.

    2^e / (L // n) with the smallest e such that all magnitudes are at most 2^e: n ranks' lanes then
    cannot overflow. Zero for a block of zeros.
    """
    mantissa, exponent = np.frexp(largest)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    limit = (2 ** (lane_bits - 1) - 1) // world_size
    if limit < 1:
        raise ValueError(f"{lane_bits}-bit lanes cannot hold a sum over {world_size} ranks")
    return np.asarray(np.where(largest > 0, np.ldexp(1.0 / limit, exponent), 0.0))


def round_to_lanes(
    values: npt.NDArray[Any], lane_bits: int, world_size: int, random: np.random.Generator
) -> npt.NDArray[Any]:
    """Round each element up or down to its block's grid; the mean is the element itself.

    Returns:
        A new array of the same shape and dtype, off by less than one grid spacing.

    Raises:
        ValueError: lane_bits is not 16, 8 or 4, or too narrow for the world size.
    """
    lanes = lanes_of(lane_bits)
    flat: npt.NDArray[Any] = values.reshape(-1)
    starts = np.arange(0, flat.size, lanes)
    if not len(starts):
        return np.array(values)
    largest = np.maximum.reduceat(np.abs(flat), starts).astype(np.float64)
    spacing = np.repeat(grid_spacing(largest, lane_bits, world_size), lanes)[: flat.size]
    scaled: npt.NDArray[Any] = np.divide(flat, spacing, out=np.zeros(flat.size), where=spacing > 0)
    steps = np.floor(scaled + random.random(flat.size))
    # Rounded up, the largest numbers of a dtype would be infinite.
    largest_of_all = np.finfo(values.dtype).max
    rounded = np.clip(steps * spacing, -largest_of_all, largest_of_all).astype(values.dtype)
    return np.asarray(rounded.reshape(values.shape))
