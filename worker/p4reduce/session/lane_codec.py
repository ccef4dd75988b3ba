# SPDX-License-Identifier: Apache-2.0
"""A collective's blocks into the lanes of frames, and sums of lanes into blocks, many at a time.

For a rank alone, which has all blocks at once. `reference.numbers` says what becomes of a number.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import Library, native_library
from p4reduce.tensors.blocks import Array, BlockMemory, Indices, Piece
from p4reduce.tensors.native_stream import NativeBlocks, NativeStream
from p4reduce.tensors.stream import Collective
from p4reduce.wire.frames import FrameBuffer

if TYPE_CHECKING:
    from p4reduce.reference.codec import ReferenceCodec


def codec_for(
    collective: Collective, world_size: int, frames: FrameBuffer
) -> Codec | ReferenceCodec:
    """Return a collective's codec; without machine code that of the specification, slow."""
    library = native_library()
    if library is not None:
        return Codec(library, collective, world_size, frames)
    # Only here, as it imports scapy's layers.
    from p4reduce.reference.codec import ReferenceCodec

    return ReferenceCodec(collective, world_size, frames)


class Codec:
    """Fills and reads frames in C, at most as many blocks at a time as the frames have rows.

    Blocks that C cannot reach, such as those of sparse tensors, go through an array.
    """

    def __init__(
        self, library: Library, collective: Collective, world_size: int, frames: FrameBuffer
    ) -> None:
        self._library = library
        self._collective = collective
        self._stream = NativeStream(collective, world_size)
        self._frames = frames
        self._places = np.arange(len(frames))  # of blocks in the array that they go through

    def encode(self, blocks: Indices, exponents: npt.NDArray[np.uint8], rows: Indices) -> None:
        """Fill frames, the rows given, with blocks of the source.

        `exponents` are those agreed for the blocks.
        """
        blocks, rows = np.ascontiguousarray(blocks, np.int64), np.ascontiguousarray(rows, np.int64)
        exponents = np.ascontiguousarray(exponents)
        source, places = self._stream.source, blocks
        if source is None:
            values, source = self._room()
            self._collective.source.gather(blocks, values[: len(blocks)])
            places = self._places
        self._library.encode(
            ctypes.addressof(self._stream.codec),
            ctypes.addressof(source.structure),
            ctypes.addressof(self._stream.residual),
            places.ctypes.data,
            blocks.ctypes.data,
            exponents.ctypes.data,
            self._frames.rows_address,
            rows.ctypes.data,
            len(blocks),
        )

    def withhold(self, blocks: Indices) -> None:
        """Keep the finite numbers of blocks that are not finite on some rank for the next call."""
        if self._stream.source is None:
            return  # nothing is fed back of blocks that C cannot reach
        codec, residual = self._stream.codec, self._stream.residual
        for block in blocks.tolist():
            self._library.withhold(
                ctypes.addressof(codec),
                ctypes.addressof(self._stream.source.structure),
                ctypes.addressof(residual),
                block,
            )

    def decode(self, blocks: Indices, exponents: npt.NDArray[np.uint8], rows: Indices) -> None:
        """Write the sums in frames into the target."""
        blocks, rows = np.ascontiguousarray(blocks, np.int64), np.ascontiguousarray(rows, np.int64)
        exponents = np.ascontiguousarray(exponents)
        target, places, values = self._stream.target, blocks, None
        if target is None:
            values, target = self._room()
            places = self._places
        self._library.decode(
            ctypes.addressof(self._stream.codec),
            ctypes.addressof(target.structure),
            places.ctypes.data,
            exponents.ctypes.data,
            self._frames.rows_address,
            rows.ctypes.data,
            len(blocks),
        )
        if values is not None:
            self._collective.target.scatter(blocks, values[: len(blocks)], slice(None))

    def _room(self) -> tuple[Array, NativeBlocks]:
        """Room for blocks, and the same for C."""
        rows, collective = len(self._places), self._collective
        values = np.empty((rows, collective.format.lanes), collective.dtype)
        return values, NativeBlocks(BlockMemory([Piece(rows, rows, 0, values.ctypes.data)]))
