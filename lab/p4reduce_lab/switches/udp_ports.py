# SPDX-License-Identifier: Apache-2.0
"""UDP ports of this host for an embedded switch: which are free, and what workers call them."""

from __future__ import annotations

import ipaddress
import secrets
import socket

from p4reduce_common.host_port import LAST_PORT, format_host_port

from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.topology import PortRow

_FIRST = 7001
_LOWEST, _HIGHEST = 20_000, 32_000  # below the ports that Linux gives out by itself
_ATTEMPTS = 100


class UdpPorts(PortRow):
    """Ports on UDP sockets, and as what a worker names them (`interface`).

    Args:
        host: an address of this machine.
        count: how many ports.
        first: the UDP port of the first one; the others follow.
    """

    def __init__(self, host: str, count: int, first: int = _FIRST) -> None:
        ports = {1 + n: f"udp:{format_host_port(host, first + n)}" for n in range(count)}
        super().__init__(ports, f"udp:{format_host_port(host, first - 1)}+{{port}}")


def udp_ports(count: int) -> UdpPorts:
    """Return free UDP ports of a loopback address that probably nobody else has drawn.

    They begin at 7001. If somebody has these ports at all addresses, they are others.

    Raises:
        LabError: there is no free row of them.
    """
    host = "127." + ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))
    busy = _busy(host, _FIRST, count)
    return UdpPorts(host, count, free_udp_ports(host, count) if busy else _FIRST)


def free_udp_ports(host: str, count: int, first: int = 0) -> int:
    """Return the first of a number of consecutive free UDP ports.

    Args:
        host: an IP address of this host.
        count: how many.
        first: which are wanted; 0: any.

    Raises:
        ArgumentsError: the address is not this host's, or somebody has one of the wanted ports.
        LabError: no such row was found.
    """
    if first + count - 1 > LAST_PORT:
        raise ArgumentsError(f"{count} ports from {first} on end above {LAST_PORT}")
    try:
        bound(host, 0).close()
    except OSError as error:
        raise ArgumentsError(
            f"host {host} is not an address of this host ({error.strerror}): `ip address` shows "
            "them"
        ) from None
    if first:
        if busy := _busy(host, first, count):
            raise ArgumentsError(f"UDP port {busy} of {host} is in use: choose another first port")
        return first
    for _ in range(_ATTEMPTS):
        first = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
        if not _busy(host, first, count):
            return first
    raise LabError(f"no {count} free UDP ports in a row from {_LOWEST} to {_HIGHEST} of {host}")


def is_free(host: str, port: int, kind: socket.SocketKind = socket.SOCK_DGRAM) -> bool:
    """Whether nobody has a port, of UDP or of another kind, at an IP address of this host."""
    try:
        bound(host, port, kind).close()
    except OSError:
        return False
    return True


def bound(host: str, port: int, kind: socket.SocketKind = socket.SOCK_DGRAM) -> socket.socket:
    """Return a new socket at a port; port 0: any. Raises OSError."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:  # a port whose last connections are closing is free
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _busy(host: str, first: int, count: int) -> int:
    """Return the first port of the row that is in use; 0: all are free."""
    ports = range(first, first + count)
    return next((port for port in ports if not is_free(host, port)), 0)
