# SPDX-License-Identifier: Apache-2.0
"""The socket to a Unix port of the embedded switch. Needs no root."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

from p4reduce_common.grpc_channels import UNIX_PATH_BYTES

from p4reduce.errors import SwitchUnreachableError
from p4reduce.transport.base import BUFFER_BYTES

CONNECT_TIMEOUT = 5.0  # seconds


def hung_up(description: str) -> SwitchUnreachableError:
    """Return the error for a connection that the switch closed."""
    return SwitchUnreachableError(
        f"the switch hung up on {description}: it stopped, or another worker has this port already"
    )


def connect(path: Path) -> socket.socket:
    """Connect to a port of the switch, where a message is a frame.

    Of the Unix sockets that keep messages apart SOCK_SEQPACKET is the one whose queue is bounded by
    bytes, not by the ten messages of net.unix.max_dgram_qlen.

    Raises:
        SwitchUnreachableError: there is no such socket, or nobody listens at it.
    """
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise SwitchUnreachableError(
            f"unix:{path}: a socket's path may have {UNIX_PATH_BYTES} bytes at most",
            lasting=True,
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        # Connecting waits where the switch's backlog is full, but not on a non-blocking socket.
        limit = struct.pack("@ll", int(CONNECT_TIMEOUT), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.connect(os.fspath(path))
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        lasting = error.errno in (errno.EPROTOTYPE, errno.EACCES)
        raise SwitchUnreachableError(
            f"unix:{path}: {_reason(path, error)}", lasting=lasting
        ) from None
    return sock


def _reason(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return f"there is no directory {path.parent}; is the switch running?"
    if error.errno == errno.ENOENT:
        return "there is no such socket; is the switch running, and does it have this port?"
    if error.errno == errno.ECONNREFUSED:
        return "nobody listens there; is the switch running?"
    if error.errno == errno.EPROTOTYPE:
        return "that is a Unix socket of another type, so it is not a port of the switch"
    if error.errno == errno.EAGAIN:
        return f"the switch did not accept the connection within {CONNECT_TIMEOUT:g} s"
    return error.strerror or str(error)
