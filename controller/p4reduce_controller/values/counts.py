# SPDX-License-Identifier: Apache-2.0
"""The values of counters."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_BYTES


@dataclass(frozen=True)
class CounterValue:
    """Packets and bytes that a counter counted."""

    frames: int
    bytes: int


@dataclass(frozen=True)
class RankCounts:
    """The admitted frames of a rank, and those multicast to it."""

    up: CounterValue
    down: CounterValue

    @property
    def payload_up(self) -> int:
        """How many frames came up with lanes, computed from their total length."""
        return (self.up.bytes - self.up.frames * EMPTY_FRAME_BYTES) // PAYLOAD_BYTES
