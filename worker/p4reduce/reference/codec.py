# SPDX-License-Identifier: Apache-2.0
"""Many blocks at a time, as `session.lane_codec.Codec` has them, where there is no machine code.

For a rank alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.reference.numbers import Numbers
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.stream import Collective
from p4reduce.wire.frames import FrameBuffer


class ReferenceCodec:
    """Turns blocks into lanes and back, as the C engine does, one block after the other."""

    def __init__(self, collective: Collective, world_size: int, frames: FrameBuffer) -> None:
        self._numbers = Numbers(collective, world_size)
        self._payload = frames.payload

    def encode(self, blocks: Indices, exponents: npt.NDArray[np.uint8], rows: Indices) -> None:
        for block, exponent, row in zip(blocks, exponents, rows, strict=True):
            lanes = self._numbers.lanes(int(block), int(exponent))
            self._payload[row] = np.frombuffer(lanes, np.uint8)

    def withhold(self, blocks: Indices) -> None:
        for block in blocks.tolist():
            self._numbers.withhold(block)

    def decode(self, blocks: Indices, exponents: npt.NDArray[np.uint8], rows: Indices) -> None:
        for block, exponent, row in zip(blocks, exponents, rows, strict=True):
            lanes = self._payload[row].tobytes()
            self._numbers.write(int(block), int(exponent), lanes, second_half=False)
