# SPDX-License-Identifier: Apache-2.0
"""Buffers of many frames, which numpy sees as columns and the kernel as messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import (
    COLUMNS,
    FRAME_STRIDE,
    PAYLOAD_BYTES,
    PAYLOAD_OFFSET,
)

# A frame begins two bytes into its row, so that all headers after Ethernet are aligned to words.
_PAD = 2
MAX_FRAME_BYTES = FRAME_STRIDE - _PAD

_PAGE = 4096
_MAC = 6  # bytes of an address

HEADER: np.dtype[Any] = np.dtype(
    {
        "names": [column.name for column in COLUMNS],
        "formats": [f"({size},)u1" if size == _MAC else f">u{size}" for _, _, size in COLUMNS],
        "offsets": [column.offset for column in COLUMNS],
        "itemsize": FRAME_STRIDE,
    }
)
"""A whole frame in a buffer of `FRAME_STRIDE` bytes a frame, by `format.COLUMNS`. All numbers are
big-endian; a MAC address is six bytes."""


class FrameBuffer:
    """A buffer for frames.

    Attributes:
        frames: uint8, shape (count, 2046): the frames from their first byte.
        raw: the same from two bytes before, as uint64 of the machine's own byte order, shape
            (count, 256), for comparing with other frames.
        records: the same as records of `HEADER`, shape (count,).
        payload: what follows them as bytes, shape (count, 1024).
        lengths: int64, shape (count,): how many bytes of each are the frame.
        rows_address: of the first row in memory; the next one is 2,048 bytes on.
        address: of the first frame, two bytes into that row.
    """

    def __init__(self, count: int) -> None:
        raw = np.zeros(count * FRAME_STRIDE + _PAGE, np.uint8)
        start = -raw.ctypes.data % _PAGE
        rows = raw[start : start + count * FRAME_STRIDE].reshape(count, FRAME_STRIDE)
        self.frames: npt.NDArray[np.uint8] = rows[:, _PAD:]
        self.raw: npt.NDArray[np.uint64] = rows.view(np.uint64)
        self.records = np.ndarray(count, HEADER, raw.data, start + _PAD, (FRAME_STRIDE,))
        self.payload = self.frames[:, PAYLOAD_OFFSET : PAYLOAD_OFFSET + PAYLOAD_BYTES]
        self.lengths: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self.rows_address: int = rows.ctypes.data
        self.address: int = self.rows_address + _PAD

    def __len__(self) -> int:
        return len(self.lengths)

    def put(self, row: int, frame: bytes) -> None:
        """Copy a frame into a row."""
        self.frames[row, : len(frame)] = np.frombuffer(frame, np.uint8)
        self.lengths[row] = len(frame)

    def get(self, row: int) -> bytes:
        """Return a copy of the frame in a row."""
        return self.frames[row, : self.lengths[row]].tobytes()
