# SPDX-License-Identifier: Apache-2.0
"""The address of the P4Runtime server: parsing, and whether it is local."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from p4reduce_common.grpc_channels import unix_path


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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_grpc_address(text: str) -> GrpcAddress:
    """Read "127.0.0.1:9559", "[::1]:9559", "localhost:0" or "unix:/path". Port 0: any free one.

    Raises:
        ValueError: with a message for the user.
    """
    if (path := unix_path(text)) is not None:
        return GrpcAddress(path=Path(path))
    host, colon, port_text = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"'{text}' is not of the form HOST:PORT or unix:PATH")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 0xFFFF:
        raise ValueError(f"port '{port_text}' of '{text}' is not within 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port_text}")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(
                f"'{host}' of '{text}' is neither an IP address nor 'localhost'"
            ) from None
    return GrpcAddress(host=host, port=int(port_text))
