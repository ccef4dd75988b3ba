# SPDX-License-Identifier: Apache-2.0
"""The address at which a rank listens for the previous one."""

from __future__ import annotations

import ipaddress
import os
import socket
import weakref
from collections.abc import Iterator

from p4reduce_common.host_port import format_host_port, parse_host_port

from p4reduce.errors import ConfigurationError
from p4reduce.inherited import keep_from_children

RING_ENVIRONMENT = "P4REDUCE_RING_ADDRESS"
FORM = "HOST or HOST:PORT"
_BACKLOG = 16


class RingListener:
    """A socket for the previous rank.

    Attributes:
        address: "host:port", for the other ranks.

    Args:
        given: "host" or "host:port". None: `$P4REDUCE_RING_ADDRESS`.
        default: the host if that is not set either.

    Raises:
        ConfigurationError: the address is malformed or not of this machine, or it means something
            else elsewhere (0.0.0.0, [::], a scope as in fe80::1%eth0), or the port is taken.
    """

    def __init__(self, given: str | None, default: str) -> None:
        text = given or os.environ.get(RING_ENVIRONMENT) or default
        try:
            host, port = parse_host_port(text, FORM, default=0)
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            if "%" in host or ipaddress.ip_address(where[0]).is_unspecified:
                raise ValueError("other hosts cannot reach this one by that")
            self._socket = socket.create_server(
                where[:2],
                family=family,
                backlog=_BACKLOG,
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen at {text!r} for the ring: {error}; ring_address= or "
                f"{RING_ENVIRONMENT} says where the other ranks reach this one by TCP"
            ) from None
        self.address = format_host_port(host, self._socket.getsockname()[1])
        self._duplicates: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        keep_from_children(self)

    def socket(self) -> socket.socket:
        """Return a duplicate of the socket, which the caller closes."""
        duplicate = self._socket.dup()
        self._duplicates.add(duplicate)
        return duplicate

    def descriptors(self) -> Iterator[int]:
        yield self._socket.fileno()
        yield from (duplicate.fileno() for duplicate in self._duplicates)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
