# SPDX-License-Identifier: Apache-2.0
"""The fields that identify an answer to this rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import (
    Endpoint,
    FrameKind,
    header_bytes,
    template,
)
from p4reduce.wire.frames import FrameBuffer

FIRST, SECOND, WHOLE = 1, 2, 3
"""Parts of a block's sums, as bits."""

# The 48 bytes of a frame that hold what is the same in every answer to us: from the source's MAC
# address to the job. That address is what nobody else can have: the switch lets in no frame that
# claims to be from it (source_check.p4). All the rest could be anybody's.
COMPARED = slice(1, 7)


def own_answers(
    here: Endpoint, switch: Endpoint, rank: int, job: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the bytes in `COMPARED` of every answer to this rank, and their mask."""
    header = header_bytes(kind=FrameKind.RESULT, rank=rank, job=job)
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
