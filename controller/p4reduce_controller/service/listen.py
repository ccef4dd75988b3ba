# SPDX-License-Identifier: Apache-2.0
"""Where the controller may listen: a private Unix socket, loopback TCP, or TLS."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
from p4reduce.control import tls
from p4reduce.control.controller_address import is_local, parse_address
from p4reduce_common.grpc_binding import why_not_bound
from p4reduce_common.grpc_channels import UNIX_PATH_BYTES, target, unix_path


class ListenError(Exception):
    """The controller cannot listen at the address. The message says why."""


def prepare(address: str, files: tls.TlsFiles | None = None) -> None:
    """Check an address before anything else starts, and remove a dead socket.

    Raises ListenError if the address is unsuitable, another controller uses it, or the TLS files
    cannot be used.
    """
    try:
        place = parse_address(address)
    except ValueError as error:
        raise ListenError(str(error)) from None
    if place is None:
        _prepare_unix(Path(unix_path(address) or ""))
        return
    if files is not None:
        _check_files(files)
    elif not is_local(address):
        raise ListenError(
            f"refusing to listen at {address} without TLS: beyond loopback anybody could take a "
            f"job over. Give {', '.join(tls.OPTIONS)}, or listen at unix:PATH or 127.0.0.1:PORT"
        )
    _check_free(*place)


def bind(server: grpc.aio.Server, address: str, files: tls.TlsFiles | None) -> str:
    """Bind `server`, and return the address with the actual port. Raises ListenError.

    `files` are for TCP. A Unix socket is protected by its directory.
    """
    unix = unix_path(address) is not None
    # gRPC makes the socket file by itself; from the first moment on it is this user's alone.
    old = os.umask(0o177) if unix else None
    try:
        if files is None or unix:
            port = server.add_insecure_port(target(address))
        else:
            port = server.add_secure_port(target(address), files.server_credentials())
    except RuntimeError as error:
        raise ListenError(f"cannot listen at {address}: {why_not_bound(address, error)}") from None
    except tls.TlsError as error:
        raise ListenError(f"cannot listen at {address}: {error}") from None
    finally:
        if old is not None:
            os.umask(old)
    if unix:
        return address
    return f"{address.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def cleared_away(address: str) -> Iterator[None]:
    """Remove the socket file when the block ends."""
    try:
        yield
    finally:
        if (path := unix_path(address)) is not None:
            Path(path).unlink(missing_ok=True)


def _prepare_unix(path: Path) -> None:
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise ListenError(
            f"{path} is longer than the {UNIX_PATH_BYTES} bytes that a Unix socket's path can have"
        )
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(directory)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot listen at unix:{path}: {error}") from None
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists already, and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # nobody listens: its owner died
            return
        except OSError as error:
            raise ListenError(f"{path} exists already, and does not answer: {error}") from None
    raise ListenError(f"another controller listens at unix:{path}")


def _check_files(files: tls.TlsFiles) -> None:
    try:
        files.check()
    except tls.TlsError as error:
        raise ListenError(str(error)) from None


def _check_private(directory: Path) -> None:
    """Refuse a directory where another user could put a socket of his own in place of ours."""
    status = directory.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid not in (os.getuid(), 0) or (
        others_write and not status.st_mode & stat.S_ISVTX
    ):
        raise ListenError(f"{directory} is open to other users; choose one of mode 0700")


def _check_free(host: str, port: int) -> None:
    """Refuse a port that is taken now, and not only once the switch is ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise ListenError(f"cannot listen at {host}:{port}: {error}") from None
