# SPDX-License-Identifier: Apache-2.0
"""Bytes of payloads as numbers, in all formats."""

from __future__ import annotations

import numpy as np
import pytest
from p4reduce.reference.numbers import bytes_of, numbers_in
from p4reduce.wire.format import PAYLOAD_BYTES, Format
from p4reduce.wire.lanes import lane_type, pack, unpack


@pytest.mark.parametrize("lane_format", list(Format))
@pytest.mark.parametrize("part", [1, 2])
def test_lanes_are_those_of_the_reference(
    lane_format: Format, part: int, rng: np.random.Generator
) -> None:
    """Whole payloads and halves, several at once; and back to the same bytes."""
    payloads = rng.integers(0, 256, (5, PAYLOAD_BYTES // part), np.uint8)
    lanes = unpack(payloads, lane_format)
    assert lanes.shape == (5, lane_format.lanes // part)
    assert lanes.dtype == lane_type(lane_format)
    for row, payload in zip(lanes, payloads, strict=True):
        assert row.tolist() == numbers_in(payload.tobytes(), lane_format)
        assert bytes_of(row.tolist(), lane_format) == payload.tobytes()
    assert np.array_equal(pack(np.ascontiguousarray(lanes), lane_format), payloads)


def test_the_first_of_two_lanes_in_a_byte_is_in_its_upper_half() -> None:
    payload = np.array([0x7F, 0x81, 0x08], np.uint8)
    assert unpack(payload, Format.INT4).tolist() == [7, -1, -8, 1, 0, -8]
