# SPDX-License-Identifier: Apache-2.0
"""A text from rank 0, where nothing but the switch connects the ranks yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from p4reduce.communicator import Communicator

_ROOM = 1024  # bytes


def broadcast_text(comm: Communicator, text: str) -> str:
    """Return rank 0's text, of up to 1,024 bytes, on all ranks. A collective.

    Args:
        comm: the ranks.
        text: rank 0's; the others' does not count.
    """
    room = np.zeros(_ROOM, np.uint8)
    given = text.encode()
    room[: len(given)] = np.frombuffer(given, np.uint8)
    comm.broadcast(room, out=room)
    return room.tobytes().rstrip(b"\0").decode()
