# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a host, and the address by which other hosts reach this one.

Names do not tell: two machines may both be called "localhost" or "worker". A host is a boot of a
kernel and a network namespace of it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable

from p4reduce.control.namespaces import namespace_id
from p4reduce.errors import ConfigurationError

ENVIRONMENT = "P4REDUCE_HOST"
"""Says the address where the names do not lead to it."""

_ANY_PORT = 9  # nothing is sent there
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_ADDRESS = slice(20, 24)  # of the answer: an IPv4 address


def identity() -> str:
    """Return what only processes of this host have; its name where Linux does not say more."""
    return namespace_id("net") or socket.gethostname()


def this_host(name: str = "") -> str:
    """Describe this host for `address_towards` of another rank, in one line.

    Args:
        name: by which others may reach it. "": its own name.
    """
    return " ".join([name or socket.gethostname(), identity(), *_addresses()])


def address_towards(hosts: Iterable[str], mine: str) -> str:
    """Return the IP address by which other hosts reach this one; "" if there are no others.

    It is the address of the interface that the kernel uses for the first of them.

    Args:
        hosts: of all workers: names or addresses, or what `this_host` says on each.
        mine: this host's entry among them.

    Raises:
        ConfigurationError: a name does not resolve, or resolves to this host; or as
            `given_address`.
    """
    if given := given_address():
        return given
    other = next((one for one in hosts if _identity_in(one) != _identity_in(mine)), None)
    if other is None:
        return ""
    name = other.split()[0]
    own_name, *own = mine.split()
    why = f"they have the same name, and no address of {name} leads elsewhere"
    ways = [name] if name != own_name else []
    ways += [one for one in addresses_in(other) if one not in own]
    for where in ways:
        try:
            address = source_address(where)
        except OSError as error:
            why = f"{where}: {error.strerror or error}"
            continue
        if not is_loopback(address):
            return address
        why = f"{where} leads to {address}, which is this host"
    raise ConfigurationError(
        f"no address of this host ({own_name}) for {name}: {why}; set {ENVIRONMENT} to the one by "
        "which the others reach it"
    )


def given_address() -> str:
    """Return the address of `P4REDUCE_HOST`; "" if it is not set.

    Raises:
        ConfigurationError: it is not an IP address of this host.
    """
    given = os.environ.get(ENVIRONMENT, "")
    if not given:
        return ""
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        raise ConfigurationError(
            f"{ENVIRONMENT}={given!r} is not an IP address: give the one by which the other hosts "
            "reach this one, such as 10.0.0.1"
        ) from None
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    why = "no single host has it"
    try:
        if not (address.is_unspecified or address.is_multicast):  # a socket may be bound to them
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((given, 0))
                probe.connect((given, _ANY_PORT))  # refused for a broadcast address
            return str(address)
    except OSError as error:
        why = error.strerror or str(error)
    raise ConfigurationError(
        f"{ENVIRONMENT}={given} is not an address of this host ({why}): "
        "`ip address` shows those that are"
    )


def is_loopback(address: str) -> bool:
    """Whether only this host has the address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _identity_in(host: str) -> str:
    """What tells a host from others: an entry without it is a name or an address."""
    name, *more = host.split()
    return more[0] if more else name


def addresses_in(host: str) -> list[str]:
    """Return the addresses in what `this_host` says."""
    return host.split()[2:]


def source_address(where: str) -> str:
    """Return this host's address of the interface that leads to a name or an address.

    It is loopback's if the name is this host's own, or Debian's 127.0.1.1.

    Raises:
        OSError: the name does not resolve, or there is no route.
    """
    found = socket.getaddrinfo(where, _ANY_PORT, type=socket.SOCK_DGRAM)
    family, _, _, _, place = found[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _addresses() -> list[str]:
    """Return the IPv4 addresses of this host's interfaces, but for loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            found.append(socket.inet_ntoa(answer[_ADDRESS]))
    return [address for address in found if not address.startswith("127.")]
