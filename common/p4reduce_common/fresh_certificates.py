# SPDX-License-Identifier: Apache-2.0
"""A server's certificates, which are read again when their files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import grpc

__all__ = ["Stamp", "fresh_credentials", "stamp"]

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]
"""What tells one state of some files from another: inode, time of change (ns), size."""


def stamp(files: Sequence[Path]) -> Stamp:
    """Return the state of files. Raises OSError if one is missing."""
    states = [file.stat() for file in files]
    return tuple((state.st_ino, state.st_mtime_ns, state.st_size) for state in states)


def fresh_credentials(
    files: Sequence[Path],
    read: Callable[[], tuple[bytes, bytes, bytes | None]],
) -> grpc.ServerCredentials:
    """Return credentials of a gRPC server that checks its files before each handshake.

    Connections that are there stay. Files that cannot be used are logged once, and those before
    them hold on: a renewal may write its files one after the other.

    Args:
        files: those that `read` reads.
        read: checks the files; returns certificate, key and CA as PEM. Without a CA no client has
            to show a certificate. Raises ValueError or OSError.

    Raises what `read` raises, the first time.
    """
    known = stamp(files)
    first = read()
    lock = threading.Lock()  # handshakes come in several threads

    def configuration(
        cert: bytes, key: bytes, ca: bytes | None
    ) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal known
        with lock:
            try:
                now = stamp(files)
                if now == known:
                    return None
                known = now
                changed = configuration(*read())
            except (OSError, ValueError) as error:
                log.error("the previous certificates stay in use: %s", error)
                return None
            log.info("certificates read again: %s", ", ".join(str(file) for file in files))
            return changed

    return grpc.dynamic_ssl_server_credentials(
        configuration(*first),
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch),  # stubs lack the None
        require_client_authentication=first[2] is not None,
    )
