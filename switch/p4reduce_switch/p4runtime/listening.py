# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of P4Runtime: its options and its address."""

from __future__ import annotations

from concurrent import futures

import grpc
from p4.v1 import p4runtime_pb2_grpc
from p4reduce_common.grpc_binding import why_not_bound
from p4reduce_common.grpc_channels import target

# As BMv2's server: each stream holds a thread.
MAX_STREAMS = 16
"""Of a device."""

_UNARY_THREADS = 8
_MAX_MESSAGE_BYTES = 64 << 20
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC's own is a minute, whatever keepalive_timeout
)
"""gRPC's options, by which a client is found out that is gone without having said so."""


class BindError(OSError):
    """The address cannot be listened on."""


def listen(
    servicer: p4runtime_pb2_grpc.P4RuntimeServicer,
    address: str,
    credentials: grpc.ServerCredentials | None,
    devices: int = 1,
) -> tuple[grpc.Server, futures.ThreadPoolExecutor, int]:
    """Serve P4Runtime for a number of devices at an address, "host:port" or "unix:path".

    Returns:
        The server, its threads, and the TCP port (0 for unix).

    Raises:
        BindError: the address is in use or not of this machine.
    """
    executor = futures.ThreadPoolExecutor(
        devices * MAX_STREAMS + _UNARY_THREADS, thread_name_prefix="p4runtime"
    )
    server = grpc.server(
        executor,
        options=(
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            # Without this two switches may listen on one port and share its connections.
            ("grpc.so_reuseport", 0),
            # A primary whose machine is gone must not stay primary.
            *KEEPALIVE,
        ),
    )
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(servicer, server)
    try:
        if credentials is None:
            port = server.add_insecure_port(target(address))
        else:
            port = server.add_secure_port(target(address), credentials)
    except RuntimeError as error:
        executor.shutdown(wait=False)
        raise BindError(f"cannot listen on {address}: {why_not_bound(address, error)}") from None
    server.start()
    return server, executor, 0 if address.startswith("unix:") else int(port)
