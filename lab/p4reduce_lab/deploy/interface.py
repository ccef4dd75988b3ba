# SPDX-License-Identifier: Apache-2.0
"""This host's interface: its rate, and its free UDP ports."""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import subprocess
from pathlib import Path

from p4reduce_lab.deploy.settings import MAX_UDP_PORT
from p4reduce_lab.errors import ArgumentsError, LabError

UNKNOWN_RATE = 1e9  # bit/s, where Linux does not say: of a virtual machine's interface, for one
_LOWEST, _HIGHEST = 20_000, 32_000  # below the ports that Linux gives out by itself
_ATTEMPTS = 100
_IP_TIMEOUT = 10.0  # seconds


def link_rate(host: str, devices: Path = Path("/sys/class/net")) -> float:
    """Return the rate in bit/s of the interface with an address; 1 Gbit/s if unknown."""
    try:
        said = subprocess.run(
            ["ip", "-json", "address"], capture_output=True, timeout=_IP_TIMEOUT, check=True
        )
        name = next(
            link["ifname"]
            for link in json.loads(said.stdout)
            if host in (one.get("local") for one in link.get("addr_info", ()))
        )
        rate = int((devices / name / "speed").read_text()) * 1e6
    except (OSError, subprocess.SubprocessError, StopIteration, ValueError):
        return UNKNOWN_RATE
    return rate if rate > 0 else UNKNOWN_RATE


def bracketed(host: str) -> str:
    """Return an address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


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
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    if first + count - 1 > MAX_UDP_PORT:
        raise ArgumentsError(f"{count} ports from {first} on end above {MAX_UDP_PORT}")
    try:
        _bind(family, host, 0).close()
    except OSError as error:
        raise ArgumentsError(
            f"host {host} is not an address of this host ({error.strerror}): `ip address` shows "
            "them"
        ) from None
    if first:
        if busy := _busy(family, host, first, count):
            raise ArgumentsError(f"UDP port {busy} of {host} is in use: choose another first port")
        return first
    for _ in range(_ATTEMPTS):
        first = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
        if not _busy(family, host, first, count):
            return first
    raise LabError(f"no {count} free UDP ports in a row from {_LOWEST} to {_HIGHEST} of {host}")


def _busy(family: int, host: str, first: int, count: int) -> int:
    """Return the first port of the row that is in use; 0: all are free."""
    ports = range(first, first + count)
    return next((port for port in ports if not _is_free(family, host, port)), 0)


def _is_free(family: int, host: str, port: int) -> bool:
    try:
        _bind(family, host, port).close()
    except OSError:
        return False
    return True


def _bind(family: int, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
