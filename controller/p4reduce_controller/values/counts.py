# SPDX-License-Identifier: Apache-2.0
"""What switches count."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_BYTES


@dataclass(frozen=True)
class Counts:
    """What a counter counted."""

    frames: int
    bytes: int


@dataclass(frozen=True)
class RankCounts:
    """The frames of a rank that were admitted, and those multicast to it."""

    up: Counts
    down: Counts

    @property
    def payload_up(self) -> int:
        """How many frames came up with lanes; the counter knows only their lengths together."""
        return (self.up.bytes - self.up.frames * EMPTY_FRAME_BYTES) // PAYLOAD_BYTES
