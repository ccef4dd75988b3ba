# SPDX-License-Identifier: Apache-2.0
"""`lane_codec.Codec` in machine code: the same frames and the same sums."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import Library
from p4reduce.protocol.lane_codec import Codec, Lanes
from p4reduce.tensors.blocks import Array, Indices, Memory, Piece
from p4reduce.tensors.native_stream import NativeBlocks, Stream
from p4reduce.tensors.stream import Collective
from p4reduce.wire.answers import FIRST, SECOND
from p4reduce.wire.format import Format
from p4reduce.wire.frames import FrameBuffer

_ROW_PAD = 2  # a frame begins that many bytes into its row


def codec_for(
    lane_format: Format,
    floats: bool,
    world_size: int,
    rows: int,
    outgoing: FrameBuffer,
    library: Library | None,
) -> Lanes:
    """Return a codec in machine code if there is a library, else one with numpy."""
    if library is None:
        return Codec(lane_format, floats, world_size, rows, outgoing)
    return NativeCodec(library, lane_format, world_size, rows, outgoing)


class NativeCodec:
    """Fills and reads frames; see `lane_codec.Codec`.

    Blocks that C cannot reach, such as those of sparse tensors, go through an array of this
    object's.
    """

    def __init__(
        self,
        library: Library,
        lane_format: Format,
        world_size: int,
        rows: int,
        outgoing: FrameBuffer,
    ) -> None:
        self._library = library
        self._world_size = world_size
        self._lanes = lane_format.lanes
        self._rows = rows
        self._outgoing = outgoing
        self._numbers = np.arange(rows)
        self._scratch: dict[np.dtype[Any], tuple[Array, NativeBlocks]] = {}

    def encode(
        self,
        collective: Collective,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        rows: Indices,
    ) -> None:
        """Fill frames, the rows given, with blocks of a collective's source."""
        stream = Stream.of(collective, self._world_size)
        blocks = np.ascontiguousarray(blocks, np.int64)
        source, places = stream.source, blocks
        if source is None:
            values, source = self._values(collective.dtype)
            collective.source.gather(blocks, values[: len(blocks)])
            places = self._numbers
        self._library.encode(
            ctypes.addressof(stream.codec),
            ctypes.addressof(source.structure),
            places.ctypes.data,
            blocks.ctypes.data,
            np.ascontiguousarray(exponents).ctypes.data,
            self._outgoing.address - _ROW_PAD,
            np.ascontiguousarray(rows).ctypes.data,
            len(blocks),
        )

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
        stream = Stream.of(collective, self._world_size)
        blocks = np.ascontiguousarray(blocks, np.int64)
        target, places, values = stream.target, blocks, None
        if target is None:
            values, target = self._values(collective.dtype)
            places = self._numbers
        self._library.decode(
            ctypes.addressof(stream.codec),
            ctypes.addressof(target.structure),
            places.ctypes.data,
            np.ascontiguousarray(exponents).ctypes.data,
            buffer.address - _ROW_PAD,
            np.ascontiguousarray(rows).ctypes.data,
            len(blocks),
            part,
        )
        if values is not None:
            half = self._lanes // 2
            columns = slice(half if part == SECOND else 0, half if part == FIRST else None)
            collective.target.scatter(blocks, values[: len(blocks), columns], columns)

    def _values(self, dtype: np.dtype[Any]) -> tuple[Array, NativeBlocks]:
        """Room for some blocks, used over and over."""
        found = self._scratch.get(dtype)
        if found is None:
            values = np.empty((self._rows, self._lanes), dtype)
            piece = Piece(self._rows, self._rows, 0, values.ctypes.data)
            found = self._scratch[dtype] = values, NativeBlocks(Memory([piece]))
        return found
