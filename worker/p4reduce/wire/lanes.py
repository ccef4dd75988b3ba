# SPDX-License-Identifier: Apache-2.0
"""The bytes of payloads as numbers, and numbers as bytes, in each format of lanes.

A lane is a big-endian number in two's complement. Those of 4 bits lie two in a byte, the first one
in its upper half, so that a payload is one long big-endian number in all formats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import Format

Bytes = npt.NDArray[np.uint8]
Lanes = npt.NDArray[Any]

_HALF = 4  # bits


def lane_type(lane_format: Format) -> np.dtype[Any]:
    """Return the dtype, of the wire's byte order, that `unpack` returns lanes in.

    int8 for lanes of 4 bits.
    """
    return np.dtype(f">i{max(lane_format.lane_bits // 8, 1)}")


def unpack(payload: Bytes, lane_format: Format) -> Lanes:
    """Return the lanes in payloads.

    Args:
        payload: shape (..., bytes), with the bytes of each in a row.
        lane_format: of the lanes.

    Returns:
        Shape (..., lanes), of `lane_type`: the same memory, but for lanes of 4 bits.
    """
    if lane_format is not Format.INT4:
        return payload.view(lane_type(lane_format))
    lanes = np.empty((*payload.shape[:-1], payload.shape[-1], 2), np.int8)
    pairs = payload.view(np.int8)
    np.right_shift(pairs, _HALF, out=lanes[..., 0])
    np.left_shift(pairs, _HALF, out=lanes[..., 1])
    np.right_shift(lanes[..., 1], _HALF, out=lanes[..., 1])
    return lanes.reshape(*payload.shape[:-1], 2 * payload.shape[-1])


def pack(lanes: Lanes, lane_format: Format) -> Bytes:
    """Return the bytes of lanes: what `unpack` turns back.

    Args:
        lanes: shape (..., lanes), contiguous, of `lane_type`; even in number where they have 4
            bits, of which those that they do not have are left out.
        lane_format: of the lanes.

    Returns:
        Shape (..., bytes): the same memory, but for lanes of 4 bits.
    """
    if lane_format is not Format.INT4:
        return lanes.view(np.uint8)
    pairs = lanes.view(np.uint8).reshape(*lanes.shape[:-1], lanes.shape[-1] // 2, 2)
    packed: Bytes = pairs[..., 0] << np.uint8(_HALF)
    packed |= pairs[..., 1] & np.uint8(0xF)
    return packed
