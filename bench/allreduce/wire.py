# SPDX-License-Identifier: Apache-2.0
"""What a call moves, by the worker's own counts."""

from __future__ import annotations

from collections.abc import Callable

import p4reduce
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES


def bytes_of(comm: p4reduce.Communicator, call: Callable[[], object]) -> tuple[int, int]:
    """Return the bytes of whole frames of a call: sent, without repetitions, and received."""
    before = comm.stats
    call()
    after = comm.stats
    repeated = after.retransmissions - before.retransmissions
    filled = after.blocks_sent - before.blocks_sent
    empty = after.frames_sent - before.frames_sent - repeated - filled
    up = filled * PAYLOAD_FRAME_BYTES + empty * EMPTY_FRAME_BYTES
    return up, after.bytes_received - before.bytes_received
