# SPDX-License-Identifier: Apache-2.0
"""The address by which other hosts reach this one, for engines that know hosts by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from p4reduce.errors import ConfigurationError

ENVIRONMENT = "P4REDUCE_HOST"
"""Says the address where the names do not lead to it."""

_ANY_PORT = 9  # nothing is sent there


def address_towards(names: Iterable[str], mine: str) -> str:
    """Return the IP address by which other hosts reach this one; "" if there are no others.

    It is the address of the interface that the kernel uses for the first of them.

    Args:
        names: host names or addresses of all workers.
        mine: this host's entry among them.

    Raises:
        ConfigurationError: a name does not resolve, or resolves to this host.
    """
    if given := os.environ.get(ENVIRONMENT):
        return given
    other = next((name for name in names if name != mine), None)
    if other is None:
        return ""
    try:
        family, _, _, _, where = socket.getaddrinfo(other, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(
            f"no address of this host ({mine}) for {other}: {error.strerror or error}; set "
            f"{ENVIRONMENT} to the one by which the others reach it"
        ) from None
    if address.startswith("127.") or address == "::1":
        raise ConfigurationError(
            f"{other} leads to {address}, which is this host ({mine}); set {ENVIRONMENT} to the "
            "address by which the others reach it"
        )
    return address
