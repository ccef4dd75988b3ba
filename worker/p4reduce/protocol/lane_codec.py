# SPDX-License-Identifier: Apache-2.0
"""Blocks of tensors into the lanes of frames, and sums of lanes into blocks."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.tensors.blocks import Array, Indices
from p4reduce.tensors.quantise import Quantiser, Rows
from p4reduce.tensors.stochastic import StochasticQuantiser
from p4reduce.tensors.stream import Collective
from p4reduce.wire.answers import FIRST, SECOND, WHOLE
from p4reduce.wire.format import Format
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack, unpack


class Lanes(Protocol):
    """Fills and reads frames whose lanes have one format."""

    def encode(
        self,
        collective: Collective,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        rows: Indices,
    ) -> None:
        """See `Codec`."""

    def decode(
        self,
        collective: Collective,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        buffer: FrameBuffer,
        rows: Indices,
        part: int,
    ) -> None:
        """See `Codec`."""


class Conversion(Protocol):
    """Between numbers and lanes; see `Quantiser`."""

    def quantise(
        self,
        rows: Rows,
        exponents: npt.NDArray[np.uint8],
        lanes: Rows,
        noise: npt.NDArray[np.uint16] | None = None,
    ) -> None:
        """Turn numbers into lanes."""

    def dequantise(
        self, lanes: Rows, exponents: npt.NDArray[np.uint8], rows: Rows, *, mean: bool = False
    ) -> None:
        """Turn sums of lanes into numbers."""


class Exact:
    """Integers are lanes as they are."""

    def quantise(
        self,
        rows: Rows,
        exponents: npt.NDArray[np.uint8],
        lanes: Rows,
        noise: npt.NDArray[np.uint16] | None = None,
    ) -> None:
        """Put them into the byte order of the wire."""
        np.copyto(lanes, rows)

    def dequantise(
        self, lanes: Rows, exponents: npt.NDArray[np.uint8], rows: Rows, *, mean: bool = False
    ) -> None:
        """Put them into the byte order of the machine."""
        np.copyto(rows, lanes)


class Codec:
    """Fills and reads frames whose lanes have one format and hold one kind of numbers.

    Args:
        lane_format: of the lanes.
        floats: whether the numbers are floats or integers.
        world_size: of the job.
        rows: the most frames at a time.
        outgoing: the frames to fill.
    """

    def __init__(
        self,
        lane_format: Format,
        floats: bool,
        world_size: int,
        rows: int,
        outgoing: FrameBuffer,
    ) -> None:
        self._conversion: Conversion
        if not floats:
            self._conversion = Exact()
        elif lane_format is Format.INT32:
            self._conversion = Quantiser(world_size)
        else:
            self._conversion = StochasticQuantiser(world_size, lane_format)
        width = lane_format.lanes
        half = width // 2
        self._width = width
        self._columns = {
            WHOLE: slice(None),
            FIRST: slice(0, half),
            SECOND: slice(half, None),
        }
        self._widths = {WHOLE: width, FIRST: half, SECOND: half}
        self._format = lane_format
        self._lanes = np.empty((rows, width), lane_type(lane_format))
        self._outgoing = outgoing.payload
        self._scratch: dict[np.dtype[Any], Array] = {}

    def encode(
        self,
        collective: Collective,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        rows: Indices,
    ) -> None:
        """Fill frames, the rows given, with blocks of a collective's source.

        `exponents` are those agreed for the blocks.
        """
        count = len(blocks)
        values = self._values(collective.dtype, count)
        collective.source.gather(blocks, values)
        if collective.dtype != collective.working_dtype:
            values = values.astype(collective.working_dtype)
        noise = None if collective.noise is None else collective.noise.rows(blocks, self._width)
        self._conversion.quantise(values, exponents, self._lanes[:count], noise)
        self._outgoing[rows] = pack(self._lanes[:count], self._format)

    def decode(
        self,
        collective: Collective,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        buffer: FrameBuffer,
        rows: Indices,
        part: int,
    ) -> None:
        """Write the sums in frames, or one half of them, into a collective's target."""
        count, width = len(rows), self._widths[part]
        payload = buffer.payload[:, : width * self._format.lane_bits // 8]
        in_a_row = rows[-1] - rows[0] == count - 1  # then there is no need for a copy
        payload = payload[rows[0] : rows[0] + count] if in_a_row else payload[rows]
        lanes = unpack(payload, self._format)
        values = self._values(collective.working_dtype, count)[:, :width]
        self._conversion.dequantise(lanes, exponents, values, mean=collective.is_mean)
        collective.target.scatter(blocks, values, self._columns[part])

    def _values(self, dtype: np.dtype[Any], count: int) -> Array:
        """Room for some blocks, used over and over."""
        values = self._scratch.get(dtype)
        if values is None:
            values = self._scratch[dtype] = np.empty((len(self._lanes), self._width), dtype)
        return values[:count]
