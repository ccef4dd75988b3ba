# SPDX-License-Identifier: Apache-2.0
"""Frames that came in, as columns; and how to tell answers to this rank from anything else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import (
    EMPTY_FRAME_BYTES,
    HALF_FRAME_BYTES,
    PAYLOAD_FRAME_BYTES,
    Endpoint,
    Flag,
    Kind,
    header_bytes,
    template,
)
from p4reduce.wire.frames import FrameBuffer

Indices = npt.NDArray[np.int64]

# Words of the aggregation header.
KIND_FLAGS_RANK, JOB, SLOT_FORMAT_EXPONENT, ROUND, BLOCK, NEXT_BLOCK, TAG = range(7)
CONTRIBUTORS = 7  # and 8

FIRST, SECOND, WHOLE = 1, 2, 3
_HALVES = Flag.FIRST_HALF | Flag.SECOND_HALF
_RESULT_FLAGS = (
    Flag.PAYLOAD | Flag.OVERFLOW | Flag.NONFINITE | Flag.MISMATCH | Flag.RETRANSMISSION | _HALVES
)


def _frame_lengths() -> npt.NDArray[np.int64]:
    """For each pair of kind and flags, as 12 bits, the length of a frame that we accept."""
    lengths = np.full(1 << 12, -1, np.int64)
    for flags in range(256):
        lengths[Kind.STATUS << 8 | flags] = EMPTY_FRAME_BYTES
        if flags & ~_RESULT_FLAGS or flags & _HALVES == _HALVES:
            continue
        if not flags & Flag.PAYLOAD:
            length = -1 if flags & _HALVES else EMPTY_FRAME_BYTES
        else:
            length = HALF_FRAME_BYTES if flags & _HALVES else PAYLOAD_FRAME_BYTES
        lengths[Kind.RESULT << 8 | flags] = length
    return lengths


LENGTHS = _frame_lengths()
"""The length of a frame by kind and flags (12 bits); -1 for what is no answer."""

PARTS = np.array(
    [{0: WHOLE, 64: FIRST, 128: SECOND}.get(flags & _HALVES, 0) for flags in range(256)],
    np.uint8,
)
"""By flags, which part of a block's sums a result has."""

# What a slot's contribution and the plain answer to it have in common: all but the exponent, the
# next block and the contributors.
ECHOED = np.array(
    [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFF00, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0, 0], np.uint32
)

# The 48 bytes of a frame that hold what is the same in every answer to us: from the source's MAC
# address to the job. That address is what nobody else can have: the switch lets in no frame that
# claims to be from it (source_check.p4). All the rest could be anybody's.
COMPARED = slice(1, 7)


def own_answers(
    here: Endpoint, switch: Endpoint, rank: int, job: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return what every answer to us holds in `COMPARED`, and a mask of the bits that matter."""
    header = header_bytes(kind=Kind.RESULT, rank=rank, job=job)
    wanted, mask = FrameBuffer(1), FrameBuffer(1)
    wanted.put(0, template(switch, here, header))
    record = mask.records
    record["eth_src"] = 0xFF
    for column, bits in (
        ("eth_type", 0xFFFF),
        ("ip_version_ihl", 0xFF),
        ("ip_flags_frag", 0x3FFF),
        ("ip_proto", 0xFF),
        ("ip_src", 0xFFFFFFFF),
        ("ip_dst", 0xFFFFFFFF),
        ("udp_sport", 0xFFFF),
        ("udp_dport", 0xFFFF),
        ("version_kind", 0xF0),
        ("rank", 0xFFFF),
        ("job", 0xFFFFFFFF),
    ):
        record[column] = bits
    return (wanted.raw[0, COMPARED] & mask.raw[0, COMPARED]), mask.raw[0, COMPARED]


class Answers:
    """Some of the frames received, as columns.

    `header` has shape (9, frames), `rows` says where in the buffer each frame is.
    """

    __slots__ = ("flags", "header", "rows", "slots")

    def __init__(
        self,
        header: npt.NDArray[np.uint32],
        flags: npt.NDArray[np.uint32],
        slots: Indices,
        rows: Indices,
    ) -> None:
        self.header = header
        self.flags = flags
        self.slots = slots
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, which: npt.NDArray[np.bool_] | Indices) -> Answers:
        """Return some of them."""
        return Answers(
            self.header[:, which], self.flags[which], self.slots[which], self.rows[which]
        )
