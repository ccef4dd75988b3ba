# SPDX-License-Identifier: Apache-2.0
"""The controller's address: one default for the daemon, its CLI and the workers."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from p4reduce import variables

_HOST = re.compile(r"[\w.-]{1,255}")


def default_address() -> str:
    """Return the controller's default gRPC address.

    `$P4REDUCE_CONTROLLER` if set, else a Unix socket in `$XDG_RUNTIME_DIR/p4reduce`, else one in a
    directory of this user's own under /tmp.
    """
    if given := os.environ.get(variables.CONTROLLER):
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(runtime, "p4reduce") if runtime else Path("/tmp", f"p4reduce-{os.getuid()}")
    return f"unix:{directory / 'controller.sock'}"


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse "host:9559", "127.0.0.1:9559", "[::1]:9559", or "unix:PATH", for which it returns None.

    Raises:
        ValueError: it is none of these; the message lists them.
    """
    if text.startswith("unix:"):
        if not text.removeprefix("unix:").removeprefix("//"):
            raise ValueError(f"{text!r} has no path after 'unix:'")
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not of the form HOST:PORT or unix:PATH")
    if not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ValueError(f"port {port!r} of {text!r} is not within 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} of {text!r} is neither a host's name nor its IP address")
    return host, int(port)


def is_local(address: str) -> bool:
    """Whether only this machine can reach a gRPC address: a Unix socket, or loopback."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connections_to(addresses: Collection[str]) -> Iterator[int]:
    """Yield the descriptors of this process's sockets that are connected to gRPC addresses.

    A host has to be given by its IP address, or as "localhost".
    """
    wanted = {_peer_name(address) for address in addresses}
    try:
        names = [path.name for path in Path("/proc/self/fd").iterdir()]
    except OSError:  # not Linux
        return
    for descriptor in map(int, names):
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:  # no socket; or what listed the names
            continue
        try:
            peer = sock.getpeername()
        except OSError:  # not connected
            continue
        finally:
            sock.detach()
        if (peer if isinstance(peer, str) else peer[:2]) in wanted:
            yield descriptor


def _peer_name(address: str) -> str | tuple[str, int]:
    """Return what `getpeername` says of a connection to a gRPC address."""
    if address.startswith("unix:"):
        return address.removeprefix("unix:").removeprefix("//")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return "127.0.0.1" if host == "localhost" else host, int(port) if port.isdecimal() else 0
