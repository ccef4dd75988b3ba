# SPDX-License-Identifier: Apache-2.0
"""From an interface's name in the settings to a transport."""

from __future__ import annotations

import logging
import os
import sys

from p4reduce_native.cores import path_at_core
from p4reduce_native.link import UNIX_KINDS, Kind, why_not

from p4reduce.errors import ConfigurationError
from p4reduce.transport.base import Transport
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT, FaultPlan, FaultyTransport
from p4reduce.transport.link import LinkTransport
from p4reduce.transport.packet import LinkedPacketTransport, PacketTransport
from p4reduce.transport.udp import CORE_MARK, open_udp
from p4reduce.transport.unix import UnixTransport

INTERFACE_ENVIRONMENT = "P4REDUCE_INTERFACE"
FIRST_PORT_ENVIRONMENT = "P4REDUCE_FIRST_PORT"
LINK_ENVIRONMENT = "P4REDUCE_LINK"
_UNIX = "unix:"
_UDP = "udp:"
_OFFLOAD = ",offload"

log = logging.getLogger(__name__)


def port_name(interface: str | None, rank: int, local_rank: int) -> str:
    """Return which port of the switch, or interface, a setting asks for.

    Args:
        interface: the name of a network interface, or "unix:/path" or "udp:host:port" for a port
            of the embedded switch. With ",offload" behind an interface's name, packets have many
            frames. `{rank}`, `{local_rank}` and `{port}` are filled in; the port is the
            rank plus `$P4REDUCE_FIRST_PORT`, or plus 1. None: `$P4REDUCE_INTERFACE`.
        rank: within the job.
        local_rank: within this host.

    Raises:
        ConfigurationError: nothing says which interface, or it does not read as one.
    """
    given = interface or os.environ.get(INTERFACE_ENVIRONMENT)
    if not given:
        raise ConfigurationError(
            f"no interface: pass interface= or set {INTERFACE_ENVIRONMENT}, to the name of a "
            "network interface (eth0) or to a port of the embedded switch "
            "(unix:/run/p4reduce/port{port}.sock, udp:switch:7001+{rank}). p4reduce-lab up "
            "starts a switch and prints what to export; p4reduce-lab exec -n 4 -- python … sets it "
            "for the ranks that it starts"
        )
    try:
        return given.format(rank=rank, local_rank=local_rank, port=rank + _first_port())
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"interface {given!r}: {error!r}; {{rank}}, {{local_rank}} and {{port}} are filled in"
        ) from None


def port_at_core(name: str, core: int) -> str:
    """Return how a port of the switch is called at one of its cores, as `open_port` takes it.

    Args:
        name: as `port_name` returns it.
        core: from 0.

    Raises:
        ConfigurationError: it is a port of one core only.
    """
    if not core:
        return name
    if name.startswith(_UNIX):
        return _UNIX + path_at_core(name.removeprefix(_UNIX), core)
    if name.startswith(_UDP):
        return f"{name}{CORE_MARK}{core}"
    raise ConfigurationError(
        f"interface {name!r}: the switch has several cores (p4reduce-switch --cores), which are "
        "reached by its Unix ports (unix:PATH) and UDP ports (udp:HOST:PORT)"
    )


def _first_port() -> int:
    """The port of rank 0, where ports are counted."""
    text = os.environ.get(FIRST_PORT_ENVIRONMENT) or "1"
    if not text.isdecimal():
        raise ConfigurationError(
            f"{FIRST_PORT_ENVIRONMENT}={text!r} is not the number of a port, such as 5"
        )
    return int(text)


def open_port(name: str, rank: int, udp_port: int = 0) -> Transport:
    """Open a transport.

    Args:
        name: as `port_name` returns it.
        rank: of this process at first; faults are drawn by it.
        udp_port: own, where the transport has one; 0: any.

    Returns:
        The transport, with faults injected where `$P4REDUCE_FAULTS` asks for them.

    Raises:
        SwitchUnreachableError: it cannot be opened.
        ConfigurationError: `$P4REDUCE_LINK` or `$P4REDUCE_FAULTS` does not read as it has to, or
            this is no Linux and that no UDP port.
    """
    transport: Transport
    if sys.platform != "linux" and not name.startswith(_UDP):
        raise ConfigurationError(
            f"interface {name!r} requires Linux; this is {sys.platform}: only UDP ports of the "
            "embedded switch (udp:switch:7001+{rank}) can be reached from here"
        )
    if name.startswith(_UNIX):
        transport = _open_unix(name.removeprefix(_UNIX))
    elif name.startswith(_UDP):
        transport = open_udp(name.removeprefix(_UDP))
    elif name.endswith(_OFFLOAD):
        transport = LinkedPacketTransport(name.removesuffix(_OFFLOAD), udp_port, offload=True)
    elif (reason := why_not()) is None:
        transport = LinkedPacketTransport(name, udp_port)
    else:
        log.debug("%s: by Python: %s", name, reason)
        transport = PacketTransport(name, udp_port)
    if faults := os.environ.get(FAULTS_ENVIRONMENT):
        transport = FaultyTransport(transport, FaultPlan.parse(faults, stream=rank))
    return transport


def _open_unix(path: str) -> Transport:
    best = _best_kind()
    reason = why_not()
    if reason is not None:
        log.debug("unix:%s: one frame per message, by Python: %s", path, reason)
        return UnixTransport(path)
    return LinkTransport(path, best)


def _best_kind() -> Kind:
    """Return the fastest kind of link that `$P4REDUCE_LINK` allows."""
    names = {kind.name.lower(): kind for kind in UNIX_KINDS}
    given = os.environ.get(LINK_ENVIRONMENT) or Kind.SHARED.name.lower()
    if given not in names:
        raise ConfigurationError(f"P4REDUCE_LINK={given}: expected one of single, batch, shared")
    return names[given]
