# SPDX-License-Identifier: Apache-2.0
"""The address of the P4Runtime server: parsing, and whether it is local."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from p4reduce_common.grpc_channels import unix_path
from p4reduce_common.host_port import FORM, format_host_port, parse_host_port


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """Either a Unix socket (`path`), or `host` (an IP address or "localhost") and `port`."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        return ipaddress.ip_address(self.host).is_loopback

    def with_port(self, port: int) -> GrpcAddress:
        return GrpcAddress(self.path, self.host, port) if self.path is None else self

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return format_host_port(self.host, self.port)


def parse_grpc_address(text: str) -> GrpcAddress:
    """Read "127.0.0.1:9559", "[::1]:9559", "localhost:0" or "unix:/path". Port 0: any free one.

    Raises:
        ValueError: with a message for the user.
    """
    if (path := unix_path(text)) is not None:
        return GrpcAddress(path=Path(path))
    host, port = parse_host_port(text, f"{FORM} or unix:PATH")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(
                f"'{host}' of '{text}' is neither an IP address nor 'localhost'"
            ) from None
    return GrpcAddress(host=host, port=port)
