# SPDX-License-Identifier: Apache-2.0
"""Makes every gRPC channel of p4reduce, and writes addresses as gRPC reads them.

gRPC sends calls to the proxy that `http_proxy` or `https_proxy` names, even calls to this machine.
The proxy of a site knows neither its compute nodes nor this machine's loopback. So channels ignore
these variables, unless `P4REDUCE_GRPC_PROXY=1` is set.

gRPC reads `unix:PATH` as a URI, so some bytes of a path have to be encoded. Clients and servers
both use `target`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import grpc

PROXY_ENVIRONMENT = "P4REDUCE_GRPC_PROXY"
"""1: channels use the proxy that the environment names. Default: 0."""

UNIX_PATH_BYTES = 107
"""What the path of a Unix socket has at most: `sun_path`, less the final zero."""

_UNIX = "unix:"


def uses_proxy() -> bool:
    """Return whether channels use the environment's proxy.

    Raises:
        ValueError: `P4REDUCE_GRPC_PROXY` is neither 0 nor 1.
    """
    text = os.environ.get(PROXY_ENVIRONMENT) or "0"
    if text not in ("0", "1"):
        raise ValueError(f"{PROXY_ENVIRONMENT}={text!r}: 1 is possible, to use a proxy, or 0")
    return text == "1"


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.Channel:
    """Return a channel to a server.

    Args:
        address: HOST:PORT or unix:PATH.
        credentials: for TLS; None: none.
        options: of gRPC, added to those of all channels.

    Raises:
        ValueError: as `uses_proxy`; or the address has no path after "unix:", or a path that gRPC
            cannot connect to.
    """
    import grpc  # a command that only parses an address starts sooner without it

    every = [("grpc.enable_http_proxy", int(uses_proxy())), *options]
    if credentials is None:
        return grpc.insecure_channel(target(address), options=every)
    return grpc.secure_channel(target(address), credentials, options=every)


def target(address: str) -> str:
    """Return an address as gRPC takes it, for clients and for servers.

    Raises:
        ValueError: as `open_channel`.
    """
    path = unix_path(address)
    if path is None:
        return address
    # Without "//", which gRPC would make part of the path that the kernel names.
    return f"{_UNIX}{quote(os.fsencode(path))}"


def unix_path(address: str) -> str | None:
    """Return the path of unix:PATH or unix:///PATH; None for HOST:PORT.

    Raises:
        ValueError: there is no path, or gRPC cannot connect to it.
    """
    if not address.startswith(_UNIX):
        return None
    path = address.removeprefix(_UNIX).removeprefix("//")
    if not path:
        raise ValueError(f"{address!r} has no path after 'unix:'")
    if "," in path:
        raise ValueError(
            f"{address!r}: a Unix socket of gRPC cannot have a comma in its path, which gRPC takes "
            "for the end of it; choose another path"
        )
    return path
