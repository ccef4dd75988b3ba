# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce puts on each rank's link: rounds, and the bytes of a round.

Follows docs/protocol.md. A block is the lanes of a frame, 1,024 bytes by default. A round is about
a block that some rank has. A rank without that block sends a frame without lanes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from p4reduce.tensors.precision import PRECISIONS
from p4reduce.wire.format import (
    EMPTY_FRAME_BYTES,
    PAYLOAD_FRAME_BYTES,
    frame_bytes,
    stripes_of,
)
from p4reduce_native.frame_lanes import FRAME_LANES

OVERLAPS = ("aligned", "independent")
"""Whether the blocks that ranks have are the same ones, or drawn by each rank for itself."""

NUMBER_BYTES = 4  # of float32, in which gradients are


@dataclass(frozen=True)
class LinkLoad:
    """One all-reduce by the switch, as each rank's link sees it.

    Attributes:
        blocks: rounds about a block.
        up: mean bytes of a rank's frame in such a round.
        down: bytes of its result.
        opening: bytes of a frame that opens a stripe, either way.
        lane_bits: of the lanes.
    """

    blocks: int
    up: float = PAYLOAD_FRAME_BYTES
    down: float = PAYLOAD_FRAME_BYTES
    opening: int = EMPTY_FRAME_BYTES
    lane_bits: int = 32

    def part(self, count: int) -> LinkLoad:
        """The same for one of `count` switches side by side, the one with the most blocks."""
        return replace(self, blocks=math.ceil(self.blocks / count))

    def stripes(self, slots: int) -> int:
        """The slots that it goes through."""
        return stripes_of(self.blocks, slots, self.lane_bits)

    def octets_up(self, slots: int) -> float:
        """The bytes that a rank sends, without repetitions."""
        return self.blocks * self.up + self.stripes(slots) * self.opening


@dataclass(frozen=True)
class PlannedTensor:
    """The tensor that is summed.

    Attributes:
        elements: floats.
        precision: of the lanes: "int32", "int16", "int8" or "int4". A ring sends 4 bytes each,
            whatever this is.
        density: the share of the blocks that a rank has.
        overlap: see `OVERLAPS`.

    Raises:
        ValueError: names the argument and what is possible.
    """

    elements: int
    precision: str = "int32"
    density: float = 1.0
    overlap: str = "independent"

    def __post_init__(self) -> None:
        if self.elements < 0:
            raise ValueError(f"elements is {self.elements}; 0 or more are possible")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; there are {', '.join(PRECISIONS)}")
        if not 0 <= self.density <= 1:
            raise ValueError(f"density is {self.density}; it is a share, from 0 to 1")
        if self.overlap not in OVERLAPS:
            raise ValueError(f"overlap is {self.overlap!r}; there are {', '.join(OVERLAPS)}")

    def load(self, ranks: int, lanes: int = FRAME_LANES, spared: int = 0) -> LinkLoad:
        """Return the load of summing it.

        Args:
            ranks: of the job.
            lanes: of 32 bits in a frame.
            spared: bytes that links leave out of a frame of float32.

        The union of the blocks that n ranks have independently, each with probability D, is
        1 - (1 - D)^n of all (OmniReduce, Fei et al., SIGCOMM 2021); that is what comes down.
        """
        full, lane_bits = frame_bytes(lanes), PRECISIONS[self.precision].lane_bits
        if self.precision == "int32":
            full -= spared
        blocks = math.ceil(self.elements / (lanes * 32 // lane_bits))
        union = self.density
        if self.overlap == "independent":
            union = 1 - (1 - self.density) ** ranks
        own = self.density / union if union else 0.0
        up = own * full + (1 - own) * EMPTY_FRAME_BYTES
        return LinkLoad(round(blocks * union), up=up, down=full, lane_bits=lane_bits)
