# SPDX-License-Identifier: Apache-2.0
"""Blocks of tensors into the lanes of frames, and sums of lanes into blocks, many at a time.

For a rank alone and for the ring, which have all blocks at once. `reference.numbers` says what
becomes of a number.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import Library, native_library
from p4reduce.tensors.blocks import Array, Indices, Memory, Piece
from p4reduce.tensors.native_stream import NativeBlocks, Stream
from p4reduce.tensors.stream import Collective
from p4reduce.wire.answers import FIRST, SECOND
from p4reduce.wire.frames import FrameBuffer

if TYPE_CHECKING:
    from p4reduce.reference.codec import ReferenceCodec

_ROW_PAD = 2  # a frame begins that many bytes into its row


def codec_for(world_size: int, outgoing: FrameBuffer) -> Codec | ReferenceCodec:
    """Return one that fills `outgoing`; without machine code that of the specification, slow."""
    library = native_library()
    if library is not None:
        return Codec(library, world_size, outgoing)
    # Only here, as it imports scapy's layers.
    from p4reduce.reference.codec import ReferenceCodec

    return ReferenceCodec(world_size, outgoing)


class Codec:
    """Fills and reads frames, in C.

    Blocks that C cannot reach, such as those of sparse tensors, go through an array of this
    object's.

    Args:
        library: the functions.
        world_size: of the job.
        outgoing: the frames to fill; as many are read at a time at most.
    """

    def __init__(self, library: Library, world_size: int, outgoing: FrameBuffer) -> None:
        self._library = library
        self._world_size = world_size
        self._outgoing = outgoing
        self._numbers = np.arange(len(outgoing))

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
        stream = Stream.of(collective, self._world_size)
        blocks = np.ascontiguousarray(blocks, np.int64)
        source, places = stream.source, blocks
        if source is None:
            values, source = self._room(collective)
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
            values, target = self._room(collective)
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
            half = collective.format.lanes // 2
            columns = slice(half if part == SECOND else 0, half if part == FIRST else None)
            collective.target.scatter(blocks, values[: len(blocks), columns], columns)

    def _room(self, collective: Collective) -> tuple[Array, NativeBlocks]:
        """Room for blocks, and the same for C."""
        rows = len(self._numbers)
        values = np.empty((rows, collective.format.lanes), collective.dtype)
        return values, NativeBlocks(Memory([Piece(rows, rows, 0, values.ctypes.data)]))
