# SPDX-License-Identifier: Apache-2.0
"""The controller's address: one default for the daemon, its CLI and the workers."""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from p4reduce_common.grpc_channels import unix_path
from p4reduce_common.host_port import FORM, parse_host_port

from p4reduce import variables
from p4reduce.errors import ConfigurationError

log = logging.getLogger(__name__)

_RUNTIME = "XDG_RUNTIME_DIR"
_SOCKET = "controller.sock"


def default_address(environ: Mapping[str, str] = os.environ) -> str:
    """Return the controller's default gRPC address.

    `$P4REDUCE_CONTROLLER` if set, else a Unix socket in `$XDG_RUNTIME_DIR/p4reduce`. Where that
    variable is not set, or names no directory of this user's own, the socket is in
    /tmp/p4reduce-UID.

    Raises:
        ConfigurationError: the directory in /tmp is another user's.
    """
    if given := environ.get(variables.CONTROLLER):
        return given
    runtime = os.environ.get(_RUNTIME, "")
    why = _why_not_ours(runtime) if runtime else "is not set"
    if not why:
        return f"unix:{Path(runtime, 'p4reduce') / _SOCKET}"
    directory = Path("/tmp", f"p4reduce-{os.getuid()}")
    if runtime:
        _warn_once(f"{_RUNTIME}={runtime} {why}: the controller's socket is in {directory}")
    if directory.is_symlink() or (directory.exists() and directory.stat().st_uid != os.getuid()):
        raise ConfigurationError(
            f"{directory} is another user's, and {_RUNTIME} {why}: set {_RUNTIME} to a directory "
            f"of your own, or {variables.CONTROLLER} to the controller's address"
        )
    return f"unix:{directory / _SOCKET}"


def _why_not_ours(directory: str) -> str:
    """Say why a directory is not one for this user's sockets; "" if it is."""
    path = Path(directory)
    if not path.is_absolute():
        return "is not an absolute path"
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}, and this is user {os.getuid()}"
    return "" if os.access(path, os.W_OK | os.X_OK) else "cannot be written to"


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse "host:9559", "127.0.0.1:9559", "[::1]:9559", or "unix:PATH", for which it returns None.

    Raises:
        ValueError: it is none of these; the message lists them.
    """
    if unix_path(text) is not None:
        return None
    return parse_host_port(text, f"{FORM} or unix:PATH")


def is_local(address: str) -> bool:
    """Whether only this machine can reach a gRPC address: a Unix socket, or loopback."""
    if address.startswith("unix:"):
        return True
    try:
        host, _ = parse_host_port(address)
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connections_to(addresses: Collection[str]) -> Iterator[int]:
    """Yield the descriptors of this process's sockets that are connected to gRPC addresses.

    A host has to be given by its IP address, or as "localhost".
    """
    wanted = {_peer_name(address) for address in addresses}
    return (descriptor for descriptor, peer in connections() if peer in wanted)


def connections() -> Iterator[tuple[int, str | tuple[str, int]]]:
    """Yield the descriptors of this process's connected sockets, each with its peer.

    A peer is a path, or an IP address and a port.
    """
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
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            yield descriptor, peer[:2]
        elif sock.family == socket.AF_UNIX and isinstance(peer, str):  # bytes: no path
            yield descriptor, peer


def _peer_name(address: str) -> str | tuple[str, int]:
    """Return what `getpeername` says of a connection to a gRPC address."""
    if (path := unix_path(address)) is not None:
        return path
    host, port = parse_host_port(address)
    return "127.0.0.1" if host == "localhost" else host, port
