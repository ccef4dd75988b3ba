# SPDX-License-Identifier: Apache-2.0
"""Finds out why a gRPC server cannot listen at an address, which gRPC does not say."""

from __future__ import annotations

import socket
from pathlib import Path

from p4reduce_common.grpc_channels import unix_path
from p4reduce_common.host_port import parse_host_port


def why_not_bound(address: str, error: Exception) -> str:
    """Return the operating system's error for an address that gRPC could not bind.

    Args:
        address: HOST:PORT or unix:PATH.
        error: gRPC's error, returned if the system accepts the address.
    """
    try:
        if (path := unix_path(address)) is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.bind(path)
            Path(path).unlink()
        else:
            host, port = parse_host_port(address)
            kind = socket.SOCK_STREAM
            for family, *_, place in socket.getaddrinfo(host, port, type=kind):
                with socket.socket(family, kind) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(place)
                    probe.listen()
    except (OSError, ValueError) as why:
        return (why.strerror if isinstance(why, OSError) else None) or str(why)
    return str(error)
