# SPDX-License-Identifier: Apache-2.0
"""The servers of a switch: P4Runtime and /metrics."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from p4reduce_switch.process.settings import StartError, SwitchSettings

if TYPE_CHECKING:
    import grpc
    from prometheus_client.registry import Collector

    from p4reduce_switch.p4runtime.listen_address import GrpcAddress
    from p4reduce_switch.process.metrics import Counts


class Served(Protocol):
    """A P4Runtime server."""

    def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen at an address; return the TCP port. Raises BindError."""

    def stop(self) -> None:
        """Stop listening."""


@contextlib.contextmanager
def serving(server: Served, settings: SwitchSettings) -> Iterator[GrpcAddress]:
    """Serve P4Runtime; yields the address with the actual port.

    Raises:
        StartError: the address or the TLS files cannot be used.
    """
    from p4reduce_switch.p4runtime.listening import BindError
    from p4reduce_switch.p4runtime.server_tls import ServerTlsError
    from p4reduce_switch.ports.unix import prepare_socket_path

    address, files = settings.address, settings.tls
    try:
        if address.path is not None:
            prepare_socket_path(address.path, socket.SOCK_STREAM)
        # A Unix socket is protected by its own permissions.
        credentials = files.credentials() if files is not None and address.path is None else None
        # gRPC makes the socket file by itself; from the first moment on it is this user's alone.
        old = os.umask(0o177)
        try:
            port = server.start(str(address), credentials)
        finally:
            os.umask(old)
    except (BindError, ServerTlsError) as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {error.strerror or error}") from None
    try:
        yield address.with_port(port)
    finally:
        server.stop()
        if address.path is not None:
            address.path.unlink(missing_ok=True)


def collector_of(counts: Counts) -> Collector:
    """Return the collector of a data plane's counts."""
    from p4reduce_switch.process.metrics import SwitchCollector

    return SwitchCollector(counts)


@contextlib.contextmanager
def metrics_at(port: int | None, collector: Callable[[], Collector]) -> Iterator[int | None]:
    """Serve /metrics if a port is given; yields the actual port.

    Raises:
        StartError: the port cannot be used, or the package for it is missing.
    """
    if port is None:
        yield None
        return
    try:
        from p4reduce_switch.process.metrics import serving_metrics

        collected = collector()
    except ModuleNotFoundError as error:
        raise StartError(
            f"--metrics-port needs the package {error.name!r}: pip install 'p4reduce[web]'"
        ) from None
    with serving_metrics(port, collected) as taken:
        yield taken
