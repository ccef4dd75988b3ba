# SPDX-License-Identifier: Apache-2.0
"""A transport without a switch: one end of a pair of sockets."""

from __future__ import annotations

import socket

from p4reduce.transport.link import FramesOverLink
from p4reduce_native.link import Link


class Connected(FramesOverLink):
    """One frame per message, as at a port of a switch that knows nothing faster."""

    lossless = True

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("unix:(connected)", Link.connect(sock, 0, 0.0))


def pair_of_ends() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connected_pair() -> tuple[Connected, Connected]:
    near, far = pair_of_ends()
    return Connected(near), Connected(far)
